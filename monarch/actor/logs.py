"""Log options of meshes (``logging_option``): where output goes, and how it is shown."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from monarch.actor.gather import gather
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import LogOptions, SetLogLevel


class _Default(int):
    """An int that marks a default, so that the same number from a caller can be told apart."""


DEFAULT_WINDOW: float | None = _Default(3)


async def set_logging(
    hosts: Iterable[ProcAddress],
    procs: Sequence[ProcAddress],
    group: Uid,
    stream_to_client: bool,
    aggregate_window_sec: float | None,
    level: int,
    *,
    later_procs: bool = False,
) -> None:
    """Set the logging options of ``procs``; with ``later_procs`` also of all later procs of
    ``hosts``.
    """
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
    for host in hosts:
        uids = tuple(proc.uid for proc in procs if proc.host_uid == host.uid)
        named = () if later_procs else uids
        outcomes.append(
            node.ask(
                host,
                LogOptions(
                    uids=named,
                    group=group,
                    stream_to_client=stream_to_client,
                    window_seconds=window,
                    level=level,
                ),
            )
        )
    for proc in procs:
        if proc.uid == node.uid:
            logging.getLogger().setLevel(level)
            continue
        outcomes.append(node.ask(proc, SetLogLevel(level)))
    # A dead proc has no level; its calls will report its death.
    await gather(outcomes, lambda outcome: None)


def flush_printed() -> None:
    """Show all output that has arrived, also of unfinished windows."""
    agent = process.current()
    if isinstance(agent, ClientAgent):
        agent.printer.flush()


def hosts_of(procs: Iterable[ProcAddress]) -> list[ProcAddress]:
    """Return the host agents of ``procs``, each once."""
    found: dict[Uid, ProcAddress] = {}
    for proc in procs:
        if proc.host_uid:
            found[proc.host_uid] = ProcAddress(proc.host_uid, proc.host_urls, proc.machine)
    return list(found.values())
