"""The half of the tensor engine that lives in the controller.

What to open, by what is to be changed:

- what happens to a torch operation: `dispatch.py`; what it does to shapes: `propagation.py`
- the handle that the program holds: `tensor.py`; where it is active: `ambient.py`
- sending, frees, failures, flow control: `client.py`; one record: `issuing.py`
- reductions, copies between meshes, streams: `collectives.py`, `streams.py`
- recordings: `recording.py`
- what errors say: `refusals.py`, `remote_exception.py`
"""
