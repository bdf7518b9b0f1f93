"""The output of ranks, on its way to the client."""
