"""Decisions of the tensor engine: no torch, no I/O, no clock, no threads.

What to open:

    keys, specs   when two calls are the same call; the arguments of a call as data
    metas         what a tensor looks like
    templates     all of a call but its tensors and numbers
    batch         how operations are gathered and encoded
    log           which results a failure spoils
    storages      permissions to read and write a storage (borrows, drops)
    program       the Python text that workers run
"""
