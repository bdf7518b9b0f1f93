"""Actors in their process: each has a cell that runs what it is sent, one message after another.

What to open, by what is to be changed:

- which actor a message is for; calls that come too early or too late: `cell_table.py`
- how an actor runs a message; what its caller is answered: `actor_cell.py`, `cell_runners.py`;
  `cell_answers.py`
- how an actor's hooks are run: `hooks.py`
"""
