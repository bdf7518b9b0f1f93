"""The folder on a host that mirrors a workspace: staged, committed, remembered.

What to open, by what is to be changed:

- how a host gets a state ready: `replica.py`, `pending.py`, `staging.py`, `in_place.py`
- what a commit does to the disk, and keeps of the host's own: `commit.py`, `parents.py`,
  `conflict_copies.py`
- what brings a commit to its end, also after a crash: `completion.py`
- what a replica notes on disk, and when: `state_log.py`
"""
