"""`monarch debug`, `monarch env`.

What to open:

    debug, env          `monarch debug`; `monarch env`
    debug_commands      arguments, options and help of `monarch debug`
"""
