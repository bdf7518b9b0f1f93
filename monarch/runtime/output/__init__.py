"""The output of ranks, on its way to the client.

What to open:

    log_stream    a proc's pipes, as its host reads them
    labels        which actor has printed a line
    log_sender    a host's part: into files, and on to the client
    log_files     the files: a directory a run, a file a rank
    log_printer   the client prints
    read_logs     the script of `monarch logs` on a host

How lines look and are aggregated: `monarch/core/log_text.py`,
`monarch/core/log_aggregation.py`.
"""
