"""Decisions without I/O: events and the time go in, effects come out.

What to open, by what is to be changed:

- which supervisor is told about a failure: `supervision.py`
- the order in which an actor takes messages: `mailbox.py`
- when a sender waits, and when it spills: `flow.py`, `monarch/runtime/links/outbox.py`
- which process passes a message on to which: `fanout.py`, `monarch/runtime/hosts/relay.py`
- which actors are named as waiting for each other: `rings.py`,
  `monarch/runtime/cells/ring_watch.py`, `monarch/runtime/waits.py`
- how lines of procs look, or are aggregated: `log_text.py`, `log_aggregation.py`
"""
