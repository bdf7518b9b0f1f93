"""The terminal: its output, its width, and its keys.

What to open:

    terminal, tables    output and its width; columns of text
    volume              `--quiet` and `--verbose`
    phases              the spinner
    confirm, keys       questions to a person; keys that are pressed while a command runs
    interrupts          Ctrl-C, SIGTERM and SIGHUP
    streams             standard streams that are closed or full
"""
