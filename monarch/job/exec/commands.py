"""Commands, a shell and forwarded ports on the hosts of a mesh, for programs."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from monarch.actor import Actor, Future, HostMesh, ProcMesh, endpoint
from monarch.actor.future import make_future
from monarch.errors import JobError, MonarchError
from monarch.job.exec.exec_run import Program, check_program, run_and_show
from monarch.job.exec.ranks import ranks_on
from monarch.job.exec.terminal_session import TerminalSession, terminal_size
from monarch.mesh import Point
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.ends.late_thread import run_aside
from monarch.runtime.programs.host_programs import HostPrograms
from monarch.runtime.programs.port_forward import PortForward, agent_of
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress

_PASSED_ON = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR")


def python_or_not(cmd: Sequence[str], *, is_module: bool = False) -> tuple[tuple[str, ...], bool]:
    """Return the arguments, and whether the host's Python runs them.

    It does if ``cmd`` is ``-m module``, or begins with a file such as ``x.py``.
    """
    arguments = (("-m",) if is_module else ()) + tuple(cmd)
    return arguments, bool(arguments) and (arguments[0] == "-m" or arguments[0].endswith(".py"))


def exec_command(
    host_mesh: HostMesh,
    cmd: Sequence[str] | str,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | Point | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run ``cmd`` on each host of a mesh, ``per_host`` times.

    The future has the largest exit status. A list is a program with its arguments, a text is a
    command for the shell. ``script.py`` and ``-m module`` are run by the host's Python. Output is
    shown while it runs, each line with its host and rank in front. ``output_dir`` gets it too, in a
    folder of its own. Only the process ``rank`` is run, or those at ``point``, if these are given.
    Each process has MONARCH_RANK_<dim> and MONARCH_SIZE_<dim>, and ends with this program. Raises
    ``JobError`` for a rank or a point outside the mesh.
    """
    arguments, is_python = python_or_not(["sh", "-c", cmd] if isinstance(cmd, str) else cmd)
    program = Program(arguments, dict(env or {}), workdir or "", None, is_python)
    check_program(program)
    named = [(address, f"host{index}") for index, address in enumerate(_agents(host_mesh))]
    ranks = ranks_on(named, per_host or {}, dict(point) if point is not None else None)
    if rank is not None:
        if not 0 <= rank < len(ranks):
            raise JobError(f"there is no rank {rank}: they go from 0 to {len(ranks) - 1}")
        ranks = [ranks[rank]]
    folder = None
    if output_dir is not None:
        folder = Path(output_dir) / f"monarch_exec_{uuid.uuid4().hex[:8]}"
    outcome: Promise[int | BaseException] = Promise()

    def run() -> None:
        try:
            outcome.set(run_and_show(process.current().node, ranks, program, folder=folder))
        except BaseException as error:
            outcome.set(error)

    run_aside(run, name="monarch-exec")
    return make_future(outcome, _value_or_raise)


def _value_or_raise(value: int | BaseException) -> int:
    if isinstance(value, BaseException):
        raise value
    return value


def shell(
    host_mesh: HostMesh, *, env: Mapping[str, str] | None = None, workdir: str | None = None
) -> int:
    """Open an interactive shell on the only host of ``host_mesh``, in this terminal; return its
    status.

    Raises ``ValueError`` for several hosts, ``JobError`` if there is no terminal.
    """
    if host_mesh.size() != 1:
        raise ValueError(
            f"a shell needs a singleton HostMesh, and this one has {host_mesh.size()} hosts: slice "
            "it, as in host_mesh.slice(hosts=0)"
        )
    return open_shell(_agents(host_mesh)[0], env=env, directory=workdir or "")


def open_shell(
    host: ProcAddress,
    *,
    env: Mapping[str, str] | None = None,
    directory: str = "",
    command: Sequence[str] = (),
) -> int:
    """Run a shell, or a ``command`` that needs a terminal, on an agent's host; return the exit
    status."""
    session = TerminalSession(process.current().node, host)
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    program = session.program
    program.run(
        command, env={**variables, **(env or {})}, directory=directory, size=terminal_size()
    )
    try:
        end = session.serve()
    finally:
        program.leave()
    assert end is not None
    if end.reason:
        raise MonarchError(end.reason)
    return end.status


def _agents(mesh: HostMesh) -> list[ProcAddress]:
    """Return the agents of the mesh's hosts.

    If this program's own agent is one of them, it begins to serve programs.
    """
    hosts = mesh._sync_hosts()
    _serve_here(hosts)
    return hosts


def _serve_here(hosts: Sequence[ProcAddress]) -> None:
    """Start serving programs, if one of the hosts has this client's own agent."""
    agent = process.current()
    if not isinstance(agent, ClientAgent) or hasattr(agent, "_own_programs"):
        return
    if any(host.uid == agent.node.uid for host in hosts):
        programs = HostPrograms(agent.host_agent)
        agent._own_programs = programs  # type: ignore[attr-defined]
        agent.at_close.append(programs.close)


class _Listener(Actor):
    """An actor that listens at ports of its host and forwards them to other hosts."""

    def __init__(self) -> None:
        self._forwards: list[PortForward] = []

    @endpoint
    async def listen(
        self, host: ProcAddress, port: int, bind: tuple[str, int], is_shared: bool
    ) -> tuple[str, int]:
        """Listen at ``bind``, and forward connections to ``port`` of ``host``.

        Return the address at which it listens. With ``is_shared``, other such listeners may use it
        too.
        """
        node = process.current().node
        forward = PortForward(node, host, port, bind=bind, is_shared=is_shared)
        self._forwards.append(forward)
        return forward.address

    async def __cleanup__(self, error: Exception | None) -> None:
        for forward in self._forwards:
            forward.close()
        self._forwards.clear()


class PortForwarder(Actor):
    """An actor that forwards ports of procs' hosts to ports of other procs' hosts, until it stops.

    ``forwarder = this_proc().spawn("forwarder", PortForwarder)``. The bytes use monarch's own
    connections; no others are opened between the hosts.
    """

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str] = "127.0.0.1:0",
    ) -> list[str]:
        """Make each proc of ``src_proc_mesh`` listen at ``src_address``, and forward to
        ``dst_port``.

        The port is on the host of the ``dst_proc_mesh`` proc of the same rank, or of its only proc.
        A function is called for each point. Returns the addresses that they listen at, by rank.
        Raises ``ValueError`` for meshes that do not fit, and for invalid ports and addresses; if
        one proc cannot listen, raises ``ActorError``, and none listens.
        """
        far, near = dst_proc_mesh._procs, src_proc_mesh._procs
        if len(far) != 1 and dst_proc_mesh.extent != src_proc_mesh.extent:
            raise ValueError(
                "destination and source must have the same shape, or the destination one proc: "
                f"{dst_proc_mesh.extent} and {src_proc_mesh.extent}"
            )
        routes = []
        for rank in range(len(near)):
            far_rank = rank if len(far) > 1 else 0
            source, target = (
                Point(rank, src_proc_mesh.extent),
                Point(far_rank, dst_proc_mesh.extent),
            )
            port = _checked(dst_port(target) if callable(dst_port) else dst_port)
            text = src_address(source) if callable(src_address) else src_address
            routes.append((source, agent_of(far[far_rank]), port, parse_address(text)))
        # Procs of one host may share an address: each gets some of its connections.
        binds = Counter(bind for *_, bind in routes if bind[1])
        _serve_here([host for _, host, _, _ in routes])
        listeners = src_proc_mesh.spawn(f"port_listener_{uuid.uuid4().hex[:8]}", _Listener)
        try:
            futures = []
            for source, host, port, bind in routes:
                listener = listeners.slice(**dict(source)) if dict(source) else listeners
                futures.append(listener.listen.call_one(host, port, bind, binds[bind] > 1))
            addresses = [await future for future in futures]
            return [f"{address}:{port}" for address, port in addresses]
        except BaseException:
            await listeners.stop()
            raise


def _checked(port: int) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port < 1 << 16:
        raise ValueError(f"{port!r} is no port to lead to: one is from 1 to 65535")
    return port


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``, or ``PORT`` at loopback. Raises ``ValueError`` for other text."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"{text!r} is no address to listen at: give one as 127.0.0.1:6006")
    return host or "127.0.0.1", int(port)
