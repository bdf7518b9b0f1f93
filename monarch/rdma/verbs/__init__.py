"""RDMA devices, by libibverbs: InfiniBand, RoCE, and Linux's software RoCE (rxe).

What to open, by what is to be changed:

- what a transfer does: `verbs_backend.py`
- what of a library is used: `library.py`; the libraries: `pyverbs_library.py`,
  `ibverbs_library.py`, and `monarch/testing/fake_verbs.py`
- which device and address are taken, memory of GPUs: `devices.py`
"""
