"""Simulates what every process has for itself, for procs that share one: pid, exit, environment.

Within a world ``os.getpid``, ``os.kill``, ``os._exit`` and ``os.environ`` apply to the proc of the
calling thread. Other threads see the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from unittest import mock

from monarch.testing.output import route_output, unroute_output
from monarch.testing.proc import InProcessProc, ProcTable
from monarch.testing.threads import ProcEnded, owner_of_thread


def _proc() -> InProcessProc | None:
    owner = owner_of_thread()
    return owner if isinstance(owner, InProcessProc) else None


class _Environment(MutableMapping[str, str]):
    """``os.environ`` of the proc whose thread uses it."""

    def __init__(self, real: MutableMapping[str, str]) -> None:
        self._real = real

    def _own(self) -> MutableMapping[str, str]:
        proc = _proc()
        return self._real if proc is None else proc.environment

    def __getitem__(self, name: str) -> str:
        return self._own()[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._own()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._own()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def copy(self) -> dict[str, str]:
        return dict(self)

    def __or__(self, other: dict[str, str]) -> dict[str, str]:
        return {**self, **other}


@contextmanager
def simulated_surroundings(procs: ProcTable) -> Iterator[None]:
    """Replace ``os.getpid``, ``os._exit``, ``os.kill``, ``os.environ`` and the output streams.

    Within the block they act for the proc whose thread uses them. A proc that exits, or is killed
    by its pid, ends alone.
    """
    real_getpid, real_exit, real_kill = os.getpid, os._exit, os.kill

    def getpid() -> int:
        proc = _proc()
        return real_getpid() if proc is None else proc.pid

    def exit_proc(status: int) -> None:
        proc = _proc()
        if proc is None:
            real_exit(status)
        proc.end(status)
        raise ProcEnded

    def kill(pid: int, number: int) -> None:
        proc = next((proc for proc in list(procs.values()) if proc.pid == pid), None)
        if proc is None:
            real_kill(pid, number)
        elif number:
            proc.end(-number)
            if proc is _proc():
                raise ProcEnded

    environment = _Environment(os.environ)
    with mock.patch.multiple(os, getpid=getpid, _exit=exit_proc, kill=kill, environ=environment):
        route_output()
        try:
            yield
        finally:
            unroute_output()
