"""``monarch doctor``: what would fail on an allocation, found before anything is started.

What to open:

    probe           what is looked at on a host, by a script for any Python from 3.7 on
    probe_session   how a probe gets to a host, and answers
    clusters        what a cluster says of a job, before there is a host
    findings        what the answers mean, and how to fix it
    examination     all hosts together
"""
