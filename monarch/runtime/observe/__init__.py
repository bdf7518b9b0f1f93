"""What procs and host agents tell of themselves when they are asked."""
