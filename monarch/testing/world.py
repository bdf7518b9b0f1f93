"""Hosts, procs and their client in one process, and the failures that a test may cause."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import monarch.actor
from monarch.actor import ActorMesh, Endpoint, HostMesh, MeshFailure, ProcMesh, attach_to_workers
from monarch.errors import SupervisionError
from monarch.net.identifiers import new_uid
from monarch.net.inproc_transport import InprocConnection, InprocNetwork, InprocTransport
from monarch.net.io_loop import IoLoop
from monarch.net.loop import Loop
from monarch.net.transport import Frames, Receive
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.hosts.directory import new_directory, remove_directory
from monarch.runtime.hosts.host_service import HostService
from monarch.runtime.hosts.launcher import OnExited, OnForked, StartLauncher
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.testing.clock import VirtualClock
from monarch.testing.proc import InProcessAgent, InProcessLauncher, InProcessProc, ProcTable
from monarch.testing.script import Hold, Script, dies, raises
from monarch.testing.surroundings import simulated_surroundings
from monarch.testing.threads import inherited, owner_of_thread
from monarch.wire.address import Uid
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Command

_CLIENT_MACHINE = "machine-of-the-client"
_END_SECONDS = 20.0


class InProcessClient(InProcessAgent, ClientAgent):
    """The real client, whose async actors run on a loop of the world's kind."""

    def close(self, grace_seconds: float | None = None) -> None:
        super().close(grace_seconds)
        self.stop_loop()


class World:
    """A simulation: a client with its own host, other hosts, and their procs."""

    def __init__(self, virtual_time: bool = False) -> None:
        #: Exists with ``virtual_time`` only.
        self.clock: VirtualClock | None = VirtualClock() if virtual_time else None
        #: Failures that no supervisor handled; those left when the world ends are raised then.
        self.faults: list[MeshFailure] = []
        self._network = InprocNetwork()
        #: The failures of calls that the test has asked for.
        self.script = Script()
        #: The procs that run, on all machines.
        self.procs: ProcTable = {}
        #: Calls that wait; they are released when the world ends.
        self._holds: list[Hold] = []
        #: The transport of each process that the world has had.
        self._transports: dict[Uid, SeverableTransport] = {}
        #: The host agents of the attached machines, by URL.
        self._hosts: dict[str, HostService] = {}
        self._host_numbers = itertools.count()
        #: The folder of the hosts' sockets.
        self._directory = ""
        #: Made when it is first needed, and again once it has been closed.
        self._client: InProcessClient | None = None
        self._client_lock = threading.RLock()
        self._is_over = False

    @property
    def host(self) -> HostMesh:
        """Return the client's own machine, as ``this_host()`` does."""
        return monarch.actor.this_host()

    def hosts(self, count: int) -> HostMesh:
        """Attach to ``count`` more machines; return a mesh with the dimension ``hosts``.

        Each has its own network address and heartbeats: see ``cut_off``.
        """
        urls = [self._add_host() for _ in range(count)]
        return attach_to_workers(workers=urls)

    def kill_proc(
        self, mesh: ProcMesh | ActorMesh[Any], rank: int = 0, signal: int = signal.SIGKILL
    ) -> None:
        """End the proc at ``rank`` of ``mesh`` by a signal, as the kernel would.

        All other processes learn of it as of a real death. Its actors run no ``__cleanup__``.
        """
        self._proc_at(mesh, rank).end(-signal)

    def kill_host(self, hosts: HostMesh, rank: int = 0) -> None:
        """Switch a machine off: its procs end with it, and no process is notified.

        The client notices that heartbeats are missing.
        """
        service = self._hosts.pop(hosts._hosts[rank].url)
        self._sever(service)
        service.close()

    def cut_off(self, hosts: HostMesh, rank: int = 0) -> None:
        """Cut the network of a machine: no message reaches it or leaves it any more."""
        self._sever(self._hosts[hosts._hosts[rank].url])

    def fail(self, endpoint: Endpoint[..., Any], error: BaseException, *, nth: int = 1) -> None:
        """Make the ``nth`` call of ``endpoint`` from now on raise ``error`` instead of running.

        This holds on each member of the endpoint's mesh; use a slice to choose some.
        """
        self._add(endpoint, nth, raises(error))

    def die(self, endpoint: Endpoint[..., Any], *, nth: int = 1, code: int = -9) -> None:
        """Make the ``nth`` call of ``endpoint`` end the proc that gets it.

        ``code`` is an exit status, or minus the number of a signal.
        """
        self._add(endpoint, nth, dies(code))

    def hold(self, endpoint: Endpoint[..., Any], *, nth: int = 1) -> Hold:
        """Make the ``nth`` call of ``endpoint`` wait until it is released, as in a slow member.

        An async actor blocks the loop of its whole proc.
        """
        hold = Hold()
        self._holds.append(hold)
        self._add(endpoint, nth, hold)
        return hold

    def wait_for_fault(self, timeout: float = 20.0) -> MeshFailure:
        """Wait for a failure that no supervisor handled; remove it from ``faults`` and return
        it."""
        deadline = time.monotonic() + timeout
        while not self.faults:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no fault within {timeout} s")
            time.sleep(0.002)
        return self.faults.pop(0)

    def _add(self, endpoint: Endpoint[..., Any], nth: int, action: Callable[[], object]) -> None:
        mesh = endpoint._mesh
        self.script.add(mesh.proc_uids, mesh.uid, endpoint._name, nth, action)

    def _proc_at(self, mesh: ProcMesh | ActorMesh[Any], rank: int) -> InProcessProc:
        procs = mesh._procs if isinstance(mesh, ProcMesh) else mesh._ref.procs
        uid = procs[rank].uid
        deadline = time.monotonic() + 20.0
        # The actor may still be starting: a spawn does not wait for it.
        while uid not in self.procs:
            if self._current().node.failure_of(uid) is not None or time.monotonic() > deadline:
                raise ValueError(f"the proc at rank {rank} of {mesh} does not run (any more)")
            time.sleep(0.002)
        return self.procs[uid]

    def _add_host(self) -> str:
        number = next(self._host_numbers)
        url = HostUrl.parse(f"ipc://{self._directory}/host-{number}")
        machine = f"machine-{number}"
        node = self.new_node(url.uid, machine)

        def over() -> None:
            del self._hosts[url.advertise]
            node.close()

        service = HostService(
            node, self._directory, machine, over, start_launcher=self._launchers(machine)
        )
        service.open(url)
        self._hosts[url.advertise] = service
        return url.advertise

    def _sever(self, service: HostService) -> None:
        for uid in [service.node.uid, *service.agent.procs]:
            self._transports[uid].sever()

    def new_node(self, uid: Uid, machine: str) -> Node:
        """Make a node for the process ``uid`` on ``machine``, whose connections can be cut."""

        def transport(loop: Loop, receive: Any) -> SeverableTransport:
            severable = self._transports[uid] = SeverableTransport(loop, receive, self._network)
            return severable

        loop = self.clock.io_loop() if self.clock is not None else IoLoop()
        return Node(uid, loop=loop, transport=transport, machine=machine)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Make an asyncio loop, on the virtual clock if there is one."""
        return self.clock.event_loop() if self.clock is not None else asyncio.new_event_loop()

    def _launchers(self, machine: str) -> StartLauncher:
        def start(
            loop: Loop, on_forked: OnForked, on_exited: OnExited, command: Command | None
        ) -> InProcessLauncher:
            return InProcessLauncher(loop, on_forked, on_exited, machine, world=self)

        return start

    def _current(self) -> ProcAgent:
        """Return the agent of the proc whose thread calls, or the client."""
        owner = owner_of_thread()
        if isinstance(owner, InProcessProc):
            return owner.agent
        with self._client_lock:
            if self._client is None or (self._client.is_closed and not self._is_over):
                node = self.new_node(new_uid(), _CLIENT_MACHINE)
                self._client = InProcessClient(node, self._launchers(_CLIENT_MACHINE))
                self._client.world = self
            return self._client

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Make this the world of the process within the block."""
        self._directory = new_directory(new_uid())
        with contextlib.ExitStack() as undo:
            undo.callback(remove_directory, self._directory)
            hook = mock.patch.object(monarch.actor, "unhandled_fault_hook", self.faults.append)
            undo.enter_context(hook)
            undo.enter_context(inherited())
            undo.enter_context(simulated_surroundings(self.procs))
            undo.enter_context(process.found_by(self._current))
            undo.callback(self._end)
            yield

    def _end(self) -> None:
        self._is_over = True
        for hold in self._holds:
            hold.release()
        procs = list(self.procs.values())
        if self._client is not None:
            self._client.close()
        for service in list(self._hosts.values()):
            service.close()
        for proc in [*procs, *self.procs.values()]:
            proc.end(-signal.SIGKILL)
            # Another thread may be using it.
            proc.ended.wait(_END_SECONDS)


@contextmanager
def in_process(*, virtual_time: bool = False) -> Iterator[World]:
    """Run a world in which hosts and procs live in this process.

    Within the block ``this_host()``, ``spawn_procs`` and everything built on them start no process
    and open no socket. With ``virtual_time`` heartbeats, timeouts and the sleep of async actors
    wait for ``world.clock.advance(seconds)``.

    Raises ``SupervisionError`` at the end for a failure that no supervisor handled, unless the test
    took it from ``world.faults``.
    """
    world = World(virtual_time)
    with world._running():
        yield world
    if world.faults:
        raise SupervisionError(
            f"nobody handled a failure in this test: {world.faults[0].report()}\nIf that is what "
            "the test is about, take it with world.wait_for_fault()."
        )


class SeverableTransport(InprocTransport):
    """The in-memory transport, which a test can cut: then it delivers nothing in either direction,
    and neither side is notified."""

    def __init__(self, loop: Loop, receive: Receive, network: InprocNetwork) -> None:
        super().__init__(loop, self._take, network)
        self._receive_all = receive
        self.is_severed = False

    def sever(self) -> None:
        """Cut all connections, those of other transports to this one included."""
        self.is_severed = True

    def _take(self, frames: Frames) -> None:
        if not self.is_severed:
            self._receive_all(frames)

    def connect(self, url: str) -> InprocConnection:
        connection = _SeverableConnection(url, self._network, self)
        self._connections.append(connection)
        return connection


class _SeverableConnection(InprocConnection):
    def __init__(self, url: str, network: InprocNetwork, transport: SeverableTransport) -> None:
        super().__init__(url, network)
        self._transport = transport

    def send(self, frames: Frames) -> None:
        if not self._transport.is_severed:
            super().send(frames)
