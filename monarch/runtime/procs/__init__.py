"""The agent in each proc, and what stands still there while all switch to new code."""
