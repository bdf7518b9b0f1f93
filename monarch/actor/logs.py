"""``logging_option`` of meshes: whether and how the client shows the procs' output."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch.actor.gather import gather
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import LogOptions, SetLogLevel


class _Default(int):
    """A default value that can be told from the same number passed by a caller."""


DEFAULT_WINDOW: float | None = _Default(3)


class LogTargets(NamedTuple):
    """The procs whose output an option is for, and their hosts; ``group`` names them."""

    hosts: Sequence[ProcAddress]
    procs: Sequence[ProcAddress]
    group: Uid
    #: Whether the option is also for all later procs of the hosts.
    later_procs: bool = False


class LoggedMesh:
    """A mesh whose procs print, and write log records."""

    def _log_targets(self) -> LogTargets:
        raise NotImplementedError

    async def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: float | None = DEFAULT_WINDOW,
        level: int = logging.INFO,
    ) -> None:
        """Set how the output of this mesh's procs reaches the client.

        A slice sets it for its own procs only, a host mesh also for later procs of its hosts. By
        default the client prints each line as it comes. ``aggregate_window_sec`` gathers similar
        lines, of one rank or of many, for so many seconds, and prints each kind once with its
        count; ``None`` prints the gathered lines and stops gathering. ``level`` is the lowest level
        of Python log records that are printed. The files on the hosts have every line anyway.

        Raises ``ValueError`` for a level beyond 0 to 255, ``RuntimeError`` for a window without
        ``stream_to_client``.
        """
        await _set_logging(self._log_targets(), stream_to_client, aggregate_window_sec, level)


async def _set_logging(
    targets: LogTargets, stream_to_client: bool, aggregate_window_sec: float | None, level: int
) -> None:
    if not 0 <= level <= 255:
        raise ValueError(f"a log level lies between 0 and 255, not at {level}")
    if aggregate_window_sec is DEFAULT_WINDOW and not stream_to_client:
        aggregate_window_sec = None
    if aggregate_window_sec is not None and not stream_to_client:
        raise RuntimeError("cannot set aggregate window without streaming to client")
    if aggregate_window_sec is not None and aggregate_window_sec <= 0:
        raise ValueError(f"an aggregate window takes time, not {aggregate_window_sec} seconds")
    node = process.current().node
    window = float(aggregate_window_sec or 0)
    outcomes = []
    for host in targets.hosts:
        uids = tuple(proc.uid for proc in targets.procs if proc.host_uid == host.uid)
        options = LogOptions(
            uids=() if targets.later_procs else uids,
            group=targets.group,
            stream_to_client=stream_to_client,
            window_seconds=window,
            level=level,
        )
        outcomes.append(node.ask(host, options))
    for proc in targets.procs:
        if proc.uid == node.uid:
            logging.getLogger().setLevel(level)
            continue
        outcomes.append(node.ask(proc, SetLogLevel(level)))
    # A dead proc has no level; its calls will report its death.
    await gather(outcomes, lambda outcome: None)


def flush_printed() -> None:
    """Print all output that has arrived, also the lines that are still being aggregated.

    Does nothing in a proc.
    """
    agent = process.current()
    if isinstance(agent, ClientAgent):
        agent.printer.flush()


def hosts_of(procs: Iterable[ProcAddress]) -> list[ProcAddress]:
    """Return the host agents of ``procs``, each once."""
    hosts: dict[Uid, ProcAddress] = {}
    for proc in procs:
        if proc.host_uid:
            hosts[proc.host_uid] = ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
    return list(hosts.values())
