"""The author of a push: what each host has, what it gets, in which order, and going back.

What to open, by what is to be changed:

- what `sync_workspace` does, step by step: `workspace_push.py`, `hosts_in_push.py`; what it tells:
  `push_words.py`
- whether a host keeps its copy inside the workspace: `sharing.py`
- how content reaches many hosts: `spreading.py`
- how a host that was away is brought up: `late_hosts.py`,
  `monarch/runtime/hosts/waiting_spawns.py`
- going back to one: `rollback.py`
"""
