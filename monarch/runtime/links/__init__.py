"""The links of a process to others: flow control, bulk, trees, peers, membership.

Each lane to an actor is flow-controlled by credit: a sender that outruns its receiver waits
(back-pressure), and after a while spills to disk. The failure detector (heartbeats, pidfds) and
the host agents say which processes are gone; `peer_down.py` makes every part forget them.

What to open, by what is to be changed:

- which processes a node knows, and what their end means: `address_book.py`; `peer_down.py`
- what the parts of a node ask of it: `network.py`
- how a sender learns of room; switches behind waiting calls: `flow_marks.py`;
  `waiting_switches.py`
- how large messages travel: `bulk_sender.py`, `bulk_receiver.py`, `shared_pool.py`
"""
