"""What processes send each other, and whom they know: lanes, bulk, trees, partings.

What to open, by what is to be changed:

- whom a process knows, and what their end means: `acquaintances.py`; `partings.py`
- how a sender learns of room; switches behind waiting calls: `flow_marks.py`;
  `waiting_switches.py`
- how large messages travel: `bulk_sender.py`, `bulk_receiver.py`, `shared_pool.py`
"""
