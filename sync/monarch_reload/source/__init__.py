"""What modules are made of: statements, the names in them, which new one comes from which old one.

What to open, by what is to be changed:

- which names a statement, a function body takes; how they are spelled: `names.py`, `scopes.py`;
  `spelling.py`
- which statement comes from which old one: `alignment.py`
- what each module runs: `source.py`, `statements.py`; what of it its import executes: `guards.py`
- what of an edited file is read and compiled: `splice.py`, `codes.py`, `lines.py`
"""
