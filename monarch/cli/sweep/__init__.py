"""`monarch sweep`.

What to open:

    sweep, search       the command, and what it tries
    sweep_display       what a sweep shows
"""
