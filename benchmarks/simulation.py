"""Many processes in one: their nodes are real, the wires and the clock between them simulated.

A network in memory carries the frames, and a virtual clock moves by what a message costs: time of
the sender's and the receiver's one thread, time on the wire, and the distance. Procs are forked in
no time but that of their host, and answer at once.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from monarch.actor import HostMesh
from monarch.actor.host import Host
from monarch.mesh import Shape, Slice
from monarch.net.loop import Timer
from monarch.net.transport import Connection, Frames, Receive
from monarch.runtime.hosts.host_agent import HostAgent
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.hosts.relay import Relay
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire import payload
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.keys import JobKeys
from monarch.wire.message import Call, ProcSpec, ProcUp, Reply, SpawnActor, SpawnProcs

__all__ = ["Cost", "World"]

# The model. Times of a message are what the runtime needs on one core of a small machine.
SEND_SECONDS = 12e-6
RECEIVE_SECONDS = 18e-6
SEND_MORE_SECONDS = 1e-6
RECEIVE_MORE_SECONDS = 4e-6
"""For each frame beyond the usual three, such as an answer that came folded with others."""
COPY_BYTES_PER_SECOND = 5e9
FORK_SECONDS = 4e-3
HOP_SECONDS = {True: 15e-6, False: 60e-6}
"""One way, by whether both ends are on one machine."""
WIRE_BYTES_PER_SECOND = {True: 5e9, False: 1.25e9}
FRAME_OVERHEAD_BYTES = 9


class Simulator:
    """The virtual clock, and the actions that are due at its times.

    Each machine does one thing at a time, in order of arrival. What comes while it is busy waits
    for one wake-up, so that a thousand arrivals at once cost no more than one by one.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._moments: list[tuple[float, int, Machine, bool]] = []
        self._tie = itertools.count()

    def at(self, when: float, place: Machine, cost: float, action: Callable[[], object]) -> None:
        """Have ``place`` run ``action`` at the time ``when``.

        It takes ``cost`` seconds of the time of the machine's thread.
        """
        number = next(self._tie)
        heapq.heappush(place.to_do, (when, number, cost, action))
        heapq.heappush(self._moments, (when, number, place, False))

    def run(self) -> None:
        """Run actions, in the order of time, until none is left."""
        while self._moments:
            when, _, place, is_wake_up = heapq.heappop(self._moments)
            place.is_woken = place.is_woken and not is_wake_up
            if not place.to_do or place.to_do[0][0] > when:
                continue
            if place.clock <= when:
                _, _, cost, action = heapq.heappop(place.to_do)
                place.clock = when + cost
                action()
                self.now = max(self.now, place.clock)
            if place.to_do and place.to_do[0][0] <= place.clock and not place.is_woken:
                place.is_woken = True
                heapq.heappush(self._moments, (place.clock, next(self._tie), place, True))


@dataclass(eq=False)
class Machine:
    """One process of the simulation: its clock, its wires, and its count of messages."""

    name: str
    simulator: Simulator
    clock: float = 0.0
    to_do: list[tuple[float, int, float, Callable[[], object]]] = field(default_factory=list)
    is_woken: bool = False
    wire_out: float = 0.0
    wire_in: float = 0.0
    num_messages: int = 0
    num_bytes: int = 0

    def count(self, size: int) -> None:
        self.num_messages += 1
        self.num_bytes += size

    # What a node's loop does: see monarch.net.loop.

    def start(self) -> None: ...

    def is_current(self) -> bool:
        return True

    def time(self) -> float:
        return self.clock

    def call_soon(self, action: Callable[[], None]) -> bool:
        self.simulator.at(self.clock, self, 0.0, action)
        return True

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self.clock + seconds, action)
        self.simulator.at(timer.when, self, 0.0, lambda: timer.action and timer.action())
        return timer

    def add_reader(self, source: int, ready: Callable[[], object]) -> None:
        raise NotImplementedError("nothing in a simulation has descriptors")

    def remove_reader(self, source: int) -> None: ...

    def run_on_loop(self, action: Callable[[], Any], timeout: float | None = None) -> Any:
        return action()

    def stop(self, timeout: float = 5.0) -> None: ...


class Network:
    """The machines that listen, by URL."""

    def __init__(self) -> None:
        self.listeners: dict[str, tuple[Machine, Receive]] = {}

    def transport(self, machine: Machine) -> Callable[[Any, Receive], Any]:
        return lambda loop, receive: SimulatedTransport(machine, receive, self)


class SimulatedTransport:
    """A transport without loss: each frame arrives whole, once and in order, after a delay."""

    def __init__(self, machine: Machine, receive: Receive, network: Network) -> None:
        self._machine = machine
        self._receive = receive
        self._network = network

    def listen(self, url: str) -> str:
        self._network.listeners[url] = self._machine, self._receive
        return url

    def connect(self, url: str) -> Connection:
        to, receive = self._network.listeners[url]
        return SimulatedConnection(self._machine, to, receive)

    def use_keys(self, keys: JobKeys) -> None: ...

    def close(self) -> None: ...


class SimulatedConnection:
    def __init__(self, sender: Machine, receiver: Machine, receive: Receive) -> None:
        self._from = sender
        self._to = receiver
        self._receive = receive
        self._is_local = sender.name.split("/")[0] == receiver.name.split("/")[0]

    def send(self, frames: Frames) -> None:
        size = sum(len(frame) + FRAME_OVERHEAD_BYTES for frame in frames)
        one, other = self._from, self._to
        num_more = max(0, len(frames) - 3)
        one.count(size)
        one.clock += SEND_SECONDS + num_more * SEND_MORE_SECONDS + size / COPY_BYTES_PER_SECOND
        on_wire = size / WIRE_BYTES_PER_SECOND[self._is_local]
        hop = HOP_SECONDS[self._is_local]
        if self._is_local:
            arrived = one.clock + on_wire + hop
        else:
            # A network card sends, and receives, one thing at a time.
            one.wire_out = max(one.clock, one.wire_out) + on_wire
            other.wire_in = max(one.wire_out + hop, other.wire_in + on_wire)
            arrived = other.wire_in

        def receive() -> None:
            other.count(size)
            self._receive(frames)

        cost = RECEIVE_SECONDS + num_more * RECEIVE_MORE_SECONDS + size / COPY_BYTES_PER_SECOND
        other.simulator.at(arrived, other, cost, receive)

    def close(self, linger_seconds: float = 0.0) -> None: ...


class _NoLauncher:
    """Takes the place of a launcher: the world forks the procs, and none of them ends."""

    is_alive = True


class SimulatedHost(HostAgent):
    """A host agent whose procs are nodes of the simulation."""

    def __init__(self, node: Node, world: World) -> None:
        super().__init__(node, "", node.uid, start_launcher=lambda *about: _NoLauncher())
        self._world = world
        # It looks again and again, and a simulation ends when nothing is left to happen.
        self._hangs.start = lambda: None  # type: ignore[method-assign]

    def _start(self, spawn: SpawnProcs, spec: ProcSpec, setup: bytes, life: int = 0) -> None:
        proc = HostProc(spawn, spec, setup, self.templates.maker(None, ()), life)
        self.procs[proc.uid] = proc
        self.watchers.made(proc.uid)
        machine = self._world.host_of(self.node)
        self._world.fork(machine, self.node, spawn, spec)


@dataclass
class World:
    """A client, its hosts, and the procs that were spawned."""

    num_hosts: int
    simulator: Simulator = field(default_factory=Simulator)
    network: Network = field(default_factory=Network)
    hosts: dict[str, Machine] = field(default_factory=dict)
    machines: list[Machine] = field(default_factory=list)
    last_handled: float = 0.0

    def __post_init__(self) -> None:
        self.client_machine, self.client = self._node("client", "client", "client")
        addresses = []
        for number in range(self.num_hosts):
            machine, node = self._node(f"h{number:011x}", f"host{number}/agent", f"host{number}")
            self.hosts[node.uid] = machine
            Relay(SimulatedHost(node, self))
            addresses.append(ProcAddress(node.uid, node.address.urls, machine=f"host{number}"))
        self.agent = ProcAgent(self.client, self.client.address)
        shape = Shape(["hosts"], Slice.new_row_major([self.num_hosts]))
        self.mesh = HostMesh("hosts", shape, [Host(address) for address in addresses])

    def _node(self, uid: str, name: str, host: str) -> tuple[Machine, Node]:
        machine = Machine(name, self.simulator)
        self.machines.append(machine)
        node = Node(uid, loop=machine, transport=self.network.transport(machine), machine=host)
        node.listen(f"sim://{uid}")
        return machine, node

    def host_of(self, node: Node) -> Machine:
        return self.hosts[node.uid]

    def fork(self, host: Machine, agent: Node, spawn: SpawnProcs, spec: ProcSpec) -> None:
        """Have a proc answer after the time that a fork takes on its host."""
        host.clock += FORK_SECONDS
        machine, node = self._node(spec.uid, f"{host.name}/{spec.uid}", agent.address.machine)
        node.replace_address(host_uid=agent.uid, host_urls=agent.address.urls)
        answer = payload.dump(None).data

        def on_call(envelope: Envelope) -> None:
            call = envelope.message
            assert isinstance(call, Call)
            self.last_handled = machine.clock
            if call.port:
                to = call.port_proc or node.address_of(call.sender)
                node.send(to, Reply(call.port, call.rank, node.uid), answer)

        def come_up() -> None:
            up = ProcUp(node.address, 1)
            node.send(agent.address, up)
            if not spawn.is_quiet:
                node.send(spawn.owner, up)

        node.handle(Call, on_call)
        node.handle(SpawnActor, lambda envelope: None)
        self.simulator.at(host.clock, machine, 0.0, come_up)

    def measure(self, action: Callable[[], Any], *, until_handled: bool = False) -> Cost:
        """Return what an action costs.

        The time ends when its future is done or, with ``until_handled``, when the last message has
        been handled.
        """
        self.simulator.run()
        start = self.client_machine.clock = self.simulator.now
        before = {id(m): (m.num_messages, m.num_bytes) for m in self.machines}
        future = action()
        done = [math.inf]
        if future is not None:
            future._promise.on_set(lambda: done.__setitem__(0, self.client_machine.clock))
        self.simulator.run()
        end = self.last_handled if until_handled else done[0]
        spent = []
        for machine in self.machines:
            messages, size = before.get(id(machine), (0, 0))
            spent.append((machine, machine.num_messages - messages, machine.num_bytes - size))
        hosts = set(self.hosts.values())
        agents = [item for item in spent if item[0] in hosts]
        client = spent[0]
        return Cost(
            end - start, client[1], client[2],
            max(item[1] for item in agents), sum(item[1] for item in agents) / len(agents),
            max(item[2] for item in agents),
        )  # fmt: skip


@dataclass
class Cost:
    seconds: float
    client_messages: int
    client_bytes: int
    host_messages: int
    mean_host_messages: float
    host_bytes: int
