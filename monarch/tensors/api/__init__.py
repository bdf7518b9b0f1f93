"""The names that programs use, under `monarch` and at Monarch's addresses.

What to open, by what is to be changed: `remote.py` (functions on workers), `functions.py` (how
workers find them), `trees.py` (values; reduce and to_mesh of trees), `recordings.py` (coalescing,
compile, explain), `gradients.py`, `autograd_functions.py`, `actor_results.py` (rref), `opaque.py`
and `remote_class.py` (objects on workers), `random_state.py`, `builtin_functions.py`.
"""
