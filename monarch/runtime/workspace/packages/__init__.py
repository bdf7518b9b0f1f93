"""Packages that a workspace's code needs: lock files, wheels, environments of hosts.

What to open, by what is to be changed:

- what comes along with a workspace: `surroundings.py`, `environment.py`, `wheels.py`,
  `host_environment.py`
- how large the caches of packages get: `cache_trimming.py`
"""
