"""``monarch sync``: the workspace to the hosts, and what they have and had."""
