"""Programs that a host runs for a person (``monarch exec``, ``shell``, detached runs), and its
ports.

What to open, by what is to be changed:

- how a program and all that it starts is ended, even if the agent dies: `guard.py`
- the host's side: programs; connections to ports: `host_programs.py`, `running_program.py`;
  `port_connections.py`
- the client's side: `remote_program.py`; a local port that leads to a host's: `port_forward.py`
- how bytes of a descriptor travel, and wait for room: `byte_flows.py`
"""
