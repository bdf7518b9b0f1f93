"""The sources of modules: their statements, the names in them, and which new one replaces which
old.

What to open, by what you change:

- which names a statement, a function body takes; how they are spelled: `names.py`, `scopes.py`;
  `spelling.py`
- which statement comes from which old one: `alignment.py`
- what each module runs: `source.py`, `statements.py`; what of it its import executes: `guards.py`
- what of an edited file is read and compiled: `splice.py`, `codes.py`, `lines.py`
"""
