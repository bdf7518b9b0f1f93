"""The names that programs written for Monarch import from Monarch's addresses.

``addresses`` lists them; ``finder`` answers imports of those that are no files of ours. The other
modules hold what exists for such programs alone.
"""
