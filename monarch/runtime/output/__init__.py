"""What ranks print, on its way to the client."""
