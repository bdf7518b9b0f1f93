"""Actors in their process: each has a cell that runs what it is sent, one message after another."""
