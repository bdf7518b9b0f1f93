"""How processes end, how that is noticed, and what is still done then.

What to open, by what is to be changed:

- what an unhandled failure does to the program: `unhandled_faults.py`
- how the end of a process is noticed: `monarch/runtime/links/failure_detector.py`,
  `monarch/runtime/hosts/host_link.py`
- what is said of an exit status: `exit_words.py`
- which processes may be signalled by number, and what ends with its parent: `process_group.py`,
  `process_start.py`
"""
