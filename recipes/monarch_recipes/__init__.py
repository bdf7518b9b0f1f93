"""Training recipes: `ddp` is one file; `titan` is a folder; `fault_tolerant` has its parts in
`replicas/`. The modules beside them serve more than one.

What to open, by what is to be changed:

- float16 in ddp; what replica groups share: `precision.py`;
  `monarch_recipes/replicas/membership.py`
- which samples a rank sees: `samples.py`
- what a titan run saves; what of its config is refused: `titan/checkpoints.py`;
  `titan/config.py`, `titan/machine.py`
- what of TorchTitan is used; how it runs on CPUs: `titan/api.py`; `titan/cpu.py`
"""
