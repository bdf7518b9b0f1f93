"""Memory of procs that their host agent keeps open, so that it outlives them.

It is anonymous (a memfd), as segments are: it has no name that could be left behind, and vanishes
with the last process that has it open. The agent never maps it. It opens it through ``/proc`` while
the proc lives, and a later proc opens it in the same way; both belong to the same user.

The memory begins with ``MARKS``: numbers that others can read without understanding the rest.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import DropMemory, FindMemory, KeepMemory, MemoryFound

NUM_MARKS = 12
MARKS = struct.Struct(f"={NUM_MARKS}q")
_SECONDS = 10.0


class HeldMemory:
    """The memory that one host agent keeps open; on its I/O loop."""

    def __init__(self, node: Node, procs: Mapping[Uid, HostProc]) -> None:
        self._node = node
        self._procs = procs
        self._fds: dict[str, dict[str, int]] = {}  # by owner and name
        node.on(KeepMemory, self._on_keep)
        node.on(FindMemory, self._on_find)
        node.on(DropMemory, self._on_drop)

    def _on_keep(self, order: KeepMemory) -> None:
        proc, error = self._procs.get(order.sender), ""
        try:
            if proc is None or not proc.pid:
                raise ProcessLookupError("it is no memory of a proc of this host")
            fd = os.open(f"/proc/{proc.pid}/fd/{order.fd}", os.O_RDWR | os.O_CLOEXEC)
            fds = self._fds.setdefault(order.owner, {})
            replaced = fds.pop(order.name, None)
            fds[order.name] = fd
            if replaced is not None:
                os.close(replaced)
        except OSError as failed:
            error = str(failed)
        self._node.answer(order, error=error)

    def _on_find(self, order: FindMemory) -> None:
        fds = self._fds.get(order.owner, {})
        sizes = {name: os.fstat(fd).st_size for name, fd in fds.items()}
        marks = {name: MARKS.unpack(os.pread(fd, MARKS.size, 0)) for name, fd in fds.items()}
        self._node.answer(order, MemoryFound(os.getpid(), dict(fds), sizes, marks))

    def _on_drop(self, order: DropMemory) -> None:
        self._let_go(order.owner)
        self._node.answer(order)

    def _let_go(self, owner: str) -> None:
        for fd in self._fds.pop(owner, {}).values():
            with contextlib.suppress(OSError):
                os.close(fd)

    def clear(self) -> None:
        """Release all memory, as when the client has left."""
        for owner in list(self._fds):
            self._let_go(owner)


@dataclass(frozen=True)
class MemoryPlace:
    """A kept memory, for processes of the host to open, and its marks."""

    name: str
    pid: int
    fd: int
    size: int
    marks: tuple[int, ...]

    def open(self) -> int:
        """Return a new descriptor of the memory. Raises ``OSError`` if the agent has ended, or
        released it."""
        fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_size != self.size:
            os.close(fd)
            raise ProcessLookupError(f"the host agent {self.pid} holds another memory by now")
        return fd


def have_held(node: Node, host: ProcAddress, owner: str, name: str, fd: int) -> str:
    """Ask the host agent to keep a memory of this proc open; return why it could not, or ""."""
    answer = node.ask(host, KeepMemory(owner, name, fd))
    return answer.value.error if answer.wait(_SECONDS) else "the host agent does not answer"


def find_held(
    node: Node, hosts: Mapping[int, ProcAddress], owner: str
) -> dict[int, list[MemoryPlace]]:
    """Return the memory that these hosts keep for ``owner``, by the number of the host. Hosts that
    do not answer are left out.
    """
    answers = {number: node.ask(host, FindMemory(owner)) for number, host in hosts.items()}
    places: dict[int, list[MemoryPlace]] = {}
    for number, answer in answers.items():
        if answer.wait(_SECONDS) and not answer.value.error:
            memory = answer.value.answer
            places[number] = [
                MemoryPlace(name, memory.pid, fd, memory.sizes[name], memory.marks[name])
                for name, fd in memory.fds.items()
            ]
    return places


def let_go(node: Node, hosts: Mapping[int, ProcAddress], owner: str) -> None:
    """Ask these hosts to release the memory that they keep for an owner. Does not wait."""
    for host in hosts.values():
        if node.failure_of(host.uid) is None:
            node.ask(host, DropMemory(owner))
