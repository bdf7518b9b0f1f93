"""The output of ranks, on its way to the client.

What to open:

    log_stream    a proc's pipes, which its host reads
    labels        which actor has printed a line
    log_sender    the host's part: writes files, and sends to the client
    log_files     the files: a directory for each run, a file for each rank
    log_printer   the client's part: prints
    read_logs     the script of `monarch logs` on a host

The layout and aggregation of lines: `monarch/core/log_text.py`, `monarch/core/log_aggregation.py`.
"""
