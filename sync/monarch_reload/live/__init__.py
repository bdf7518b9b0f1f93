"""The objects of the running modules, and how they take new code.

What to open, by what you change:

- what reload does to a class, to an Enum, to a function, to a lambda: `classes.py`, `enums.py`,
  `patch.py`, `lambdas.py`; to functions that functions made: `closures.py`
- how an object that staged code made becomes part of the live modules: `settle.py`
- what staged code sees of a module: `staged_module.py`
- functions that are not bound to their names: `live_functions.py`
- objects that `gc.freeze` hides: `frozen.py`; all objects of some types: `all_objects.py`
- what native code keeps of a class: `natives.py`; `typing.get_overloads`: `overloads.py`
- which live objects staged code may change: `holders.py`, `targets.py`
- what tables and registries hold: `tables.py`, `registries.py`, `registrars.py`
- what happened to a container: `differences.py`
- graphs of torch.compile, and which are stale: `compiled.py`; moved lines: `line_shift.py`
"""
