"""Questions to a running mesh, or to a run that has ended.

What to open:

    visit                     questions to hosts, without becoming their client; clocks are
                              compared
    query                     SQL over the rows of processes and the folders of runs
    tables, snapshot_tables   the tables; those of this moment, under Monarch's names
    answer                    the answer to a query
    hang_report               which ranks wait for which, and which collective does not match; with
                              `monarch/core/waits.py` and `monarch/core/collectives.py`
    stacks                    stacks of many ranks
    trace, profile            a file for Perfetto; of a block of a program
    prometheus                figures for Prometheus
    json_rows                 JSON, one object a line
    kept_files                files of a run's folder, without links that lead out of it
"""
