"""The rules of git and of `.monarchignore`, which leave files out of a workspace.

What to open, by what you change:

- git's patterns; why a file is left out, in words: `gitignore.py`,
  `monarch_sync/scanning/explain.py`
- where a user's own ignore rules are: `git_config.py`
- which files git tracks, also such that rules leave out: `git_index.py`, `tracked.py`
- which files are left out of a sync: `ignore.py`
"""
