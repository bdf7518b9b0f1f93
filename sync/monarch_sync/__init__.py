"""Keeps folders on many machines equal, and reloads what changed. Knows no actors."""
