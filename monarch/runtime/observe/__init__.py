"""Answers of procs and host agents to questions about themselves.

What to open, by what is to be changed:

- a proc's state at this moment (actors, calls in hand, queues, the actors they wait for), and
torch's
  record of collectives: `live_state.py`, `flight_record.py`
- its last events, as rows; which there are: `drain.py`; `monarch/core/event_ring.py`
- the processes' desks, which answer: `proc_desk.py`; `host_desk.py`, which also keeps the rows of
procs that die; what the
  kernel says of a machine: `machine_state.py`
"""
