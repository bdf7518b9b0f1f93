"""The plan of an edit: the statements that have to run, their order, and warnings about the new
code.

What to open, by what you change:

- what an edit makes run again, and what must not run again, as torch's operators: `dirty_marks.py`,
  `propagation.py`, `plan.py`, `staged_copies.py`
- from sources to edits: `edits.py`, `graph.py`
- which modules an edit of another one concerns: `importers.py`; which ones a fresh process
  imports to decide: `reached_modules.py`
- assignments taken away: `removed_assignments.py`; what `import *` brings: `stars.py`
- which edits count only when a run begins again: `start_helpers.py`
- imports of modules that are gone: `gone_modules.py`
- warnings about edited functions: `code_warnings.py`, `unbound_names.py`, `misfit_calls.py`
"""
