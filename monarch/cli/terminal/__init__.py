"""The terminal: where output goes, how wide it is, and what a person presses there.

What to open:

    terminal, tables    where output goes, and how wide; columns of text
    volume              `--quiet` and `--verbose`
    phases              the spinner
    confirm, keys       questions to a person; keys that are pressed while a command runs
    interrupts          Ctrl-C, SIGTERM and SIGHUP
    streams             standard streams that are closed or full
"""
