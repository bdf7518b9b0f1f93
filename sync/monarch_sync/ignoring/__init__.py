"""What git, and `.monarchignore`, leave out of a workspace."""
