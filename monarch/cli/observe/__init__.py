"""``monarch query``, ``hang``, ``trace``, ``top`` and ``dashboard``: a look into what runs.

What to open, by what is to be changed:

- a command's arguments, options and help: `commands.py`
- which processes are asked: `target.py`
- what each prints: `questions.py`; `views.py`, `pages.py`
"""
