"""The objects of the running modules, and how they take new code.

What to open, by what you change:

- what reload does to a class, to an Enum, to a function, to a lambda: `classes.py`, `enums.py`,
  `patch.py`, `lambdas.py`; to functions that functions made: `closures.py`
- how an object that staged code made becomes part of the live modules: `settle.py`
- what staged code sees of a module: `staged_module.py`
- functions to which their names do not lead: `live_functions.py`
- what `gc.freeze` hides: `frozen.py`; all objects of some types: `all_objects.py`
- what native code keeps of a class: `natives.py`; `typing.get_overloads`: `overloads.py`
- what of live objects staged code may change: `holders.py`, `targets.py`
- what tables and registries hold: `tables.py`, `registries.py`, `registrars.py`
- what happened to a container: `differences.py`
- what torch.compile has made, and what of it is stale: `compiled.py`; moved lines: `line_shift.py`
"""
