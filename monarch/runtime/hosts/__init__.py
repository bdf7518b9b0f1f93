"""The host agent: makes, watches, relays to and ends the procs of one machine."""
