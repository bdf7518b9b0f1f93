"""Processes and the agents in them: client, host agent, zygote, proc.

What to open, by what is to be changed:

- where a client listens for other machines: `reachable.py`
- what Ctrl-C may cut short; what else asks a push to end: `uninterrupted.py`,
  `monarch/cli/entry.py`; `monarch/cli/interrupts.py`
- the calls that a rank refuses: `run_gate.py`
- which calls are not sent, after a push to a slice: `code_states.py`,
  `monarch/actor/mesh_ref.py`
"""
