"""Existing runs: `monarch runs`.

What to open:

    runs                `monarch runs`
    runs_commands       its commands' arguments, options and help
    slow_runs           `monarch runs hold`, `wait`
"""
