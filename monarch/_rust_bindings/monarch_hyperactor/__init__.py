"""Homes of names that ``monarch.actor`` has too."""
