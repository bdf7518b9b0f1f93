"""The host agent: makes, watches, relays to and ends the procs of one machine.

What to open, by what is to be changed:

- how hosts are asked for what they have, and dead ones found: `asking.py`
- how an agent is started at the far end of a login, and on a node of Slurm: `starter.py`,
  `monarch/runtime/slurm_task.py`
- what a host tells its listeners (a run holds, a push came through); which listeners there are:
  `bulletins.py`, `monarch/wire/bulletin.py`; `monarch/cli/sync/bulletin_listener.py`
- which processes are told that a proc is up, gives way, or ends: `proc_watchers.py`
- how procs are made; what a host learns to import: `templates.py`, `launcher.py`;
  `monarch/runtime/zygote.py`, `monarch/runtime/bootstrap.py`;
  `monarch/runtime/procs/seen_imports.py`; `monarch/runtime/learned_modules.py`
- how procs are asked to end, and killed: `proc_stops.py`, `host_door.py`
- what procs of `this_host()` get that have a `$WORKSPACE_DIR` of their own:
  `monarch/runtime/client_agent.py`, `monarch/runtime/workspace/pushing/local_replicas.py`
- how procs give way to new ones: `replacements.py`, `monarch/runtime/procs/kept_spawns.py`
"""
