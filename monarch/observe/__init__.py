"""What a person asks a running mesh, or an ended run: queries, traces, who waits for whom."""
