"""Code that follows its files, at Monarch's address; ``sync_workspace`` brings it to processes."""
