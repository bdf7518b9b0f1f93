"""A workspace's folders, read into a manifest.

What to open, by what you change:

- whether a workspace's folder is still the same, or was unmounted: `identities.py`
- whether a push may empty a folder on hosts: `emptied.py`,
  `monarch/runtime/workspace/pushing/host_states.py`
- where a scan looks, and what is there; what git tracks though rules leave it out: `scanner.py`,
  `looking.py`; `monarch_sync/ignoring/tracked.py`
- paths that are left out of a scan; files that cannot be read: `left_out.py`; `unreadable.py`,
  `monarch/runtime/workspace/pushing/host_states.py`
- how files are read that may change meanwhile, or are being written: `reading.py`
- which files need not be read again: `readings.py`; what is sent of them: `contents.py`
- why a path belongs to a workspace or not, in words: `explain.py`
"""
