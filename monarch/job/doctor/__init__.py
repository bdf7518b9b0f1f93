"""``monarch doctor``: what would fail on an allocation, found before anything is started.

What to open, by what is to be changed:

- what is looked at on a host, by whatever Python is there: `probe.py`
- how a probe gets to a host, and answers: `probe_session.py`
- what a cluster says of a job, before there is a host: `clusters.py`
- what is made of the answers: `findings.py`; all hosts together: `examination.py`
"""
