"""What procs and host agents tell of themselves when they are asked.

What to open, by what is to be changed:

- what a proc says of this moment (actors, calls in hand, queues, whom they wait for), and torch's
  record of collectives: `live_state.py`, `flight_record.py`
- its last events, as rows; which there are: `drain.py`; `monarch/core/event_ring.py`
- who answers: `proc_desk.py`; `host_desk.py`, which also keeps the rows of procs that die; what the
  kernel says of a machine: `machine_state.py`
"""
