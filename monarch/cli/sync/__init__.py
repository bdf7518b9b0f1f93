"""``monarch sync``: the workspace to the hosts, and what they have and had."""

from monarch.cli.sync.command import sync

__all__ = ["sync"]
