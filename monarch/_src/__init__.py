"""Where programs for Monarch import a few names from that it has nowhere else."""
