"""Decisions of the tensor engine: no torch, no I/O, no clock, no threads.

What to open:

    keys, specs   keys that are equal for equal calls; the arguments of a call as data
    metas         the shape, strides, dtype and device of a tensor
    templates     calls without their tensors and numbers
    batch         how operations are gathered and encoded
    log           which results a failure spoils
    storages      permissions to read and write a storage (borrows, drops)
    program       the Python text that workers run
"""
