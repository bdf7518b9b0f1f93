"""The half of the tensor engine that lives in the procs.

What to open, by what is to be changed:

- how records become calls, and what a failing one leaves: `executor.py`, `definitions.py`
- what ranks send each other: `collectives.py`; the groups they do it in: `groups.py`
- streams, on CPU and CUDA: `lanes.py`; values that pass between streams and actors: `slots.py`
- what the controller may ask: `worker.py`; how small values travel: `packing.py`
- objects that stay there: `objects.py`, `remote_classes.py`
"""
