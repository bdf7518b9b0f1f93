"""Messages to frames and back. Pure: no sockets, no clocks, no threads."""
