"""New code runs ahead of its commit, beside the live modules.

What to open, by what you change:

- how statements of a plan run: `stage.py`
- how they see live objects and containers: `stand_ins.py`, `container_copies.py`
- what a refused reload undoes: `side_effects.py`, `held_back.py`, `held_attributes.py`; loggers
  and signals: `outside.py`
- which module decides if new code cannot run in place, and how long it may take: `spare.py`,
  `spare_import.py`, `budget.py`; once a host: `monarch/runtime/workspace/shared_trial.py`
"""
