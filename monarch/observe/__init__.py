"""What a person asks a running mesh, or a run that has ended: queries, traces, who waits for whom."""
