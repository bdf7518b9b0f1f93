"""The host agent's side of a zygote: starts it, orders forks, and gets reports of deaths."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from monarch.net.loop import Loop
from monarch.runtime.ends.exit_words import describe_exit
from monarch.runtime.procs.proc_config import MAX_PACKET_BYTES, ProcConfig, encode_order
from monarch.runtime.procs.zygote_process import ZygoteProcess, require_linux
from monarch.wire.address import Uid
from monarch.wire.message import Command

_PACKET_BYTES = 64 * 1024


OnForked = Callable[[Uid, int, int], None]
OnExited = Callable[[Uid, int | None], None]


class MakesProcs(Protocol):
    """Makes procs for a host agent: a zygote, or a program that starts a single proc."""

    @property
    def is_alive(self) -> bool: ...

    def drift(self) -> dict[str, str | None]: ...

    def fork(self, config: ProcConfig, out: int, err: int, setup: bytes = b"") -> None: ...

    def preload(
        self, modules: Sequence[str], done: Callable[[dict[str, str]], None] | None = None
    ) -> None: ...

    def learn(self, modules: Sequence[str], done: Callable[[dict[str, str]], None]) -> None: ...

    def kill(self, uid: Uid) -> None: ...

    def close(self) -> None: ...


StartLauncher = Callable[[Loop, OnForked, OnExited, Command | None], MakesProcs]


class Launcher:
    """One zygote. All methods and callbacks are for the I/O loop.

    ``on_forked(uid, pid, started)``, ``on_exited(uid, exit_code)`` report procs; when the zygote
    itself dies, every proc of it dies too and is reported with ``exit_code`` ``None``. ``command``
    starts the zygote instead of this process's own interpreter; ``zygote`` is a zygote that runs
    already.
    """

    def __init__(
        self,
        loop: Loop,
        on_forked: OnForked,
        on_exited: OnExited,
        command: Command | None = None,
        zygote: ZygoteProcess | None = None,
    ) -> None:
        require_linux()
        self._loop = loop
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._procs: dict[Uid, int] = {}
        self._preloaded: list[Callable[[dict[str, str]], None]] = []
        self._zygote = zygote or ZygoteProcess(command)
        self._socket = self._zygote.socket
        self.modules: set[str] = set()
        loop.add_reader(self._socket.fileno(), self._on_readable)

    @property
    def pid(self) -> int:
        """The pid of the zygote."""
        return self._zygote.pid

    def drift(self) -> dict[str, str | None]:
        """Return what has changed in this process's environment since the zygote got a copy of it.
        ``None``: the variable was removed.
        """
        return self._zygote.drift()

    def fork(self, config: ProcConfig, out: int, err: int, setup: bytes = b"") -> None:
        """Fork a proc that writes its output to ``out`` and ``err``, and close both here.

        ``setup`` is a pickled function that the proc runs first. Raises ``OSError`` if ``config``
        is too big.
        """
        data = encode_order({"op": "fork", "config": config})
        if len(data) > MAX_PACKET_BYTES:
            raise OSError(
                errno.E2BIG,
                f"its environment and paths take {len(data)} bytes, of {MAX_PACKET_BYTES} at most",
            )
        self._procs[config.uid] = config.life
        fds = [out, err]
        try:
            if setup:
                fds.append(_memory_file(setup))
            socket.send_fds(self._socket, [data], fds)
        except OSError:
            self._lost()
        finally:
            for fd in fds[2:]:
                os.close(fd)

    def preload(
        self, modules: Sequence[str], done: Callable[[dict[str, str]], None] | None = None
    ) -> None:
        """Import ``modules`` in the template; ``done`` is called with the errors by module name."""
        self.modules.update(modules)
        self._preloaded.append(done or (lambda errors: None))
        self._send({"op": "preload", "modules": list(modules)})

    def learn(self, modules: Sequence[str], done: Callable[[dict[str, str]], None]) -> None:
        """Let the zygote import modules. ``done`` gets the errors, by module.

        After an error, the zygote must not be used as a template: close it.
        """
        self._preloaded.append(done)
        self._send({"op": "learn", "modules": list(modules)})

    def kill(self, uid: Uid) -> None:
        self._send({"op": "kill", "uid": uid})

    def _send(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(order))

    def _on_readable(self) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = self._socket.recv(_PACKET_BYTES)
        if not data:
            self._lost()
            return
        event = msgspec.json.decode(data)
        if event["event"] == "preloaded":
            self._preloaded.pop(0)(event["errors"])
        elif "uid" in event and self._procs.get(event["uid"]) == event["life"]:
            # Otherwise of a process that gave way to one of its uid before it was forked.
            self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        uid = event["uid"]
        if event["event"] == "forked":
            self._on_forked(uid, event["pid"], event["started"])
        else:
            del self._procs[uid]
            self._on_exited(uid, event["code"])

    def _lost(self) -> None:
        """Report the deaths of all procs, because the zygote has ended."""
        self.close()
        lost, self._procs = self._procs, {}
        for uid in lost:
            self._on_exited(uid, None)
        waiting, self._preloaded = self._preloaded, []
        for done in waiting:
            done({"": "the template process died"})

    @property
    def is_alive(self) -> bool:
        return self._socket.fileno() != -1

    def close(self) -> None:
        """End the zygote and every proc of it."""
        if self._socket.fileno() == -1:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._preloaded:
            self._zygote.kill()  # It imports, and would not see the socket close for seconds.
        self._zygote.wait()


class LauncherAhead:
    """Makes launchers. ``zygote`` is a zygote that was started before the host agent.

    The first launcher without a command gets that zygote, unless the environment has changed since
    the zygote started.
    """

    def __init__(self, zygote: ZygoteProcess | None) -> None:
        self._zygote = zygote

    def __call__(
        self, loop: Loop, on_forked: OnForked, on_exited: OnExited, command: Command | None
    ) -> Launcher:
        zygote = None
        if command is None and self._zygote is not None:
            if self._zygote.is_as_if_new:
                zygote, self._zygote = self._zygote, None
            else:
                self.close()
        return Launcher(loop, on_forked, on_exited, command, zygote)

    @property
    def pids(self) -> set[int]:
        """The pid of the zygote, while no launcher has it."""
        return set() if self._zygote is None else {self._zygote.pid}

    def close(self) -> None:
        """End the zygote, if no launcher has it."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.discard()


def _memory_file(data: bytes) -> int:
    """Return the descriptor of a nameless file that holds ``data``.

    A pickled function may be too large for one packet of the socket.
    """
    fd = os.memfd_create("setup")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


class ExitReasons:
    """Describes how procs ended.

    It reports that a proc ran out of memory if the kernel's count of such kills has risen.
    """

    def __init__(self, cgroup_root: str = "/sys/fs/cgroup", self_cgroup: str = "") -> None:
        self._root = cgroup_root
        self._self_cgroup = self_cgroup or "/proc/self/cgroup"
        self._kills = oom_kills(self._root, self._self_cgroup)

    def describe(self, code: int | None) -> str:
        text = describe_exit(code)
        if code != -signal.SIGKILL:
            return text
        kills_before, self._kills = self._kills, oom_kills(self._root, self._self_cgroup)
        if self._kills > kills_before:
            return (
                f"{text}: out of memory, says the kernel (oom_kill of its memory cgroup went from "
                f"{kills_before} to {self._kills})"
            )
        return text


def oom_kills(cgroup_root: str = "/sys/fs/cgroup", self_cgroup: str = "/proc/self/cgroup") -> int:
    """Return how many processes of our memory cgroup the kernel has killed; 0 if that is
    unknown."""
    for path in _counters(cgroup_root, self_cgroup):
        try:
            with open(path, encoding="ascii") as file:
                counts = dict(line.split(maxsplit=1) for line in file)
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _counters(root: str, self_cgroup: str) -> list[str]:
    """Return the files in which the kernel may count out-of-memory kills.

    Files of the unified cgroup hierarchy come first, then files of the older one.
    """
    paths = []
    try:
        with open(self_cgroup, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        lines = []
    for _, controllers, cgroup in (line for line in lines if len(line) == 3):
        if controllers == "":
            paths.append(f"{root}{cgroup.rstrip('/')}/memory.events")
        elif "memory" in controllers.split(","):
            paths.append(f"{root}/memory{cgroup.rstrip('/')}/memory.oom_control")
    # Inside a container the path above may be that of the machine.
    return [*paths, f"{root}/memory.events", f"{root}/memory/memory.oom_control"]
