"""Starts and ends the process of a zygote.

It is separate from the host agent's side (``hosts/launcher.py``), because a program that will spawn
starts it first, and imports its host agent while the zygote imports modules for procs.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from monarch.python_start import module_arguments
from monarch.runtime.procs.proc_config import CONTROL_FD
from monarch.wire.message import Command

_SEND_BUFFER_BYTES = 1 << 20

ZYGOTE_ARGUMENTS = tuple(module_arguments("monarch.runtime.entry.zygote"))
"""The arguments that make a Python a zygote."""


def require_linux() -> None:
    """Raise ``OSError`` on a system that cannot have procs."""
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        raise OSError(
            errno.ENOSYS, "procs need Linux: from this system, attach to hosts that run it"
        )


class ZygoteProcess:
    """A zygote with this process's environment, or started by ``command``.

    Orders go through ``socket``; the zygote ends when it is closed. Raises ``OSError`` if the
    zygote cannot be started.
    """

    def __init__(self, command: Command | None = None) -> None:
        self._command = command or Command(sys.executable, None, ZYGOTE_ARGUMENTS)
        self._environment = dict(os.environ)
        self._directory = os.getcwd()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        # Its own session: the terminal's Ctrl-C is the client's to handle, not the procs'.
        try:
            self._process = self._start(theirs)
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._command.arg0 or self._command.program, *self._command.args],
            executable=self._command.program,
            env={**self._start_environment(), CONTROL_FD: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _start_environment(self) -> dict[str, str]:
        environment = dict(self._environment) if self._command.inherit_env else {}
        for name, value in self._command.env.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_as_if_new(self) -> bool:
        """Return whether a zygote that is started now would find the same environment."""
        try:
            return self._directory == os.getcwd() and not self.drift()
        except OSError:
            return False

    def drift(self) -> dict[str, str | None]:
        """Return the environment variables that have changed here since the zygote started.

        ``None`` means that a variable was removed. Variables that the zygote's command sets or
        removes are left out.
        """
        if not self._command.inherit_env:
            return {}
        then, now = self._environment, dict(os.environ)
        changed: dict[str, str | None] = {k: v for k, v in now.items() if then.get(k) != v}
        changed.update({name: None for name in then if name not in now})
        return {k: v for k, v in changed.items() if k not in self._command.env}

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        """Wait until the zygote has ended. It ends when its socket is closed."""
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            # Busy importing, it has not seen the socket close; its procs die with it.
            self._process.kill()
            self._process.wait()

    def discard(self) -> None:
        """Kill a zygote that has received no order."""
        self.socket.close()
        self._process.kill()
        self._process.wait()
