"""The names that programs use, under `monarch` and at Monarch's addresses
(`monarch.compat.addresses`).

What to open, by what is to be changed: `remote.py` (functions on workers), `fetching.py` (values),
`collectives.py` (reduce and to_mesh of trees), `recordings.py` (coalescing, compile),
`gradients.py`, `autograd_functions.py`, `opaque.py` (objects on workers), `random_state.py`,
`builtin_functions.py`.
"""
