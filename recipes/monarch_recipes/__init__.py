"""Training recipes: one readable file each.

What to open, by what is to be changed:

- float16 in ddp; what replica groups share: `precision.py`;
  `monarch_recipes/replicas/averaging.py`
- which samples a rank sees: `samples.py`
- what a titan run saves; what of its config is refused: `titan_checkpointer.py`;
  `titan_config.py`, `titan_machine.py`
- what of TorchTitan is used; how it runs on CPUs: `titan_api.py`; `titan_cpu.py`
"""
