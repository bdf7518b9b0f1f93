"""Decisions of the tensor engine: no torch, no I/O, no clock, no threads.

What to open, by what is to be changed:

- when two calls are the same call: `keys.py`; what a tensor looks like: `metas.py`
- what is remembered of a call: `templates.py`
- how operations are gathered and encoded: `batch.py`
- what a failure spoils: `log.py`
- permissions to read and write a storage (borrows, drops): `storages.py`
- the Python text that workers run: `program.py`
"""
