"""Notices changes in a workspace: by the kernel's events, and by polling where there are no events.

What to open, by what you change:

- how a save is noticed; which folders are watched; waiting for git: `watch.py`, `live_watch.py`,
  without inotify `system_watch.py`; `cover.py`; `git_locks.py`
- the tree of watches, and the paths that their events name: `watched_folders.py`
- rule files and git indexes outside of the folders: `outer_rules.py`
- which file systems are polled: `file_system.py`
"""
