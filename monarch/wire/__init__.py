"""Messages to frames and back. Pure: no sockets, no clocks, no threads.

What to open, by what is to be changed:

- what of a value is a buffer: `payload.py`, `tensors.py`
- what cloudpickle keeps of code: `pickler.py`
"""
