"""The process of a host agent, as every kind of job starts it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from monarch.python_start import module_arguments
from monarch.runtime.links.secret import SECRET_VARIABLES

AGENT_PROGRAM = "monarch.runtime.entry.host_main"
"""The module that runs a host agent; every agent's command contains it."""

_TEXT, _DESCRIPTOR = SECRET_VARIABLES


def start_agent(
    url: str,
    name: str = "",
    *,
    secret: str = "",
    ends_with_us: bool = False,
    env: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a host agent at ``url``, in a session of its own.

    The ``secret`` goes through a pipe, because arguments and environment are not private; without
    it, the agent reads its environment. ``ends_with_us``: it ends when this process ends.
    ``options`` go to ``subprocess.Popen``.
    """
    environment = dict(os.environ if env is None else env)
    descriptors = list(pass_fds)
    parent = [str(os.getpid())] if ends_with_us else []
    with contextlib.ExitStack() as ours:
        if secret:
            reader, writer = os.pipe()
            ours.callback(os.close, reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(secret.encode())
            environment.pop(_TEXT, None)
            environment[_DESCRIPTOR] = str(reader)
            descriptors.append(reader)
        return subprocess.Popen(
            [sys.executable, *module_arguments(AGENT_PROGRAM, url, name, *parent)],
            env=environment,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
