"""``monarch sync``: the workspace to the hosts, and what they have and had.

What to open, by what is to be changed:

- what `monarch sync` prints; what a watch outlives; which of its pushes are told: `output.py`,
  `monarch_sync/report.py`, `monarch_sync/host_report.py`; `watching.py`, `project_edits.py`;
  `push_news.py`
- which refusals a watch tries again by itself: `push_news.py`
- files that a watch finds changing all the time: `hot_files.py`
"""
