"""Decisions without I/O: events and the time go in, effects come out."""
