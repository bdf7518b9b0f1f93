"""Questions to a running mesh, or to a run that has ended.

What to open, by what is to be changed:

- how hosts are asked, without becoming their client, and clocks are compared:
  `visit.py`
- tables and their SQL: `query.py`, `tables.py`; what a question gives: `answer.py`
- who waits for whom, which collective does not match: `hang_report.py`; `monarch/core/waits.py`,
  `monarch/core/collectives.py`
- a file for Perfetto: `trace.py`; figures for Prometheus: `prometheus.py`
"""
