"""The settings of programs: assign to ``monarch.actor.config.<name>``."""

from __future__ import annotations

from monarch.runtime.cells import actor_log

prefix_python_logs_with_actor = True
"""Whether records of ``logging`` begin with the actor that they come from."""

actor_log.set_switch(lambda: prefix_python_logs_with_actor)
