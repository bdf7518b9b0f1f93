"""What the kernel says of a workspace, and what it leaves unsaid."""
