"""``monarch doctor``: checks that find what would fail on an allocation, before it is started.

What to open:

    probe           the checks on a host, a script for any Python from 3.7 on
    probe_session   how a probe is started on a host
    clusters        questions to a cluster about a job, before it has a host
    findings        what the answers mean, and how to fix problems
    examination     all hosts together
"""
