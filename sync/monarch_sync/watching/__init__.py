"""What the kernel says of a workspace, and what it leaves unsaid.

What to open, by what is to be changed:

- how a save is noticed; which folders are watched; waiting for git: `watch.py`, `live_watch.py`,
  without inotify `system_watch.py`; `cover.py`; `git_locks.py`
"""
