"""Bytes between processes: an I/O loop, and transports with one contract."""
