"""`monarch sweep`.

What to open:

    sweep, search       the command, and the values that it tries
    sweep_display       the display of a sweep
"""
