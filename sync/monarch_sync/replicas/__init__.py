"""The folder on a host that mirrors a workspace: staged, committed, remembered."""
