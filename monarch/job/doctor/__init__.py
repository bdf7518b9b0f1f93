"""``monarch doctor``: what would fail on an allocation, found before anything is started.

What to open, by what is to be changed:

- what is looked at on a host, by any Python from 3.7 on: `probe.py`
- how a probe gets to a host, and answers: `probe_session.py`
- what a cluster says of a job, before there is a host: `clusters.py`
- what is made of the answers: `findings.py`; all hosts together: `examination.py`
"""
