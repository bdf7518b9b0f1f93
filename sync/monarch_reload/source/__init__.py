"""The sources of modules: their statements, the names in them, and which new statement replaces
which old one.

What to open, by what you change:

- which names a statement or a function body reads; how they are spelled: `names.py`; `spelling.py`
- which statement comes from which old one: `alignment.py`
- what each module runs: `source.py`, `statements.py`; the branches that are taken: `guards.py`
- which part of an edited file is parsed and compiled: `splice.py`, `codes.py`
"""
