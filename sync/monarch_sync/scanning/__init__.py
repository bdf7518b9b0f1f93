"""A workspace's folders, read into a manifest."""
