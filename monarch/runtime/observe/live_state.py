"""The present state of a process, as data. It is read on the I/O loop, so busy actors do not delay
it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from monarch.core.event_ring import SentCall
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.observe.machine_state import process_state
from monarch.runtime.procs.proc_agent import ProcAgent

_MOST_MISSING = 64
_MOST_CALLS = 256
_LONGEST_TEXT = 2000


def live_state(agent: ProcAgent) -> dict[str, Any]:
    """Return the state of a process. Times are seconds; ``now`` is the present in nanoseconds of
    the machine's monotonic clock, and ``epoch`` in nanoseconds since 1970."""
    now = time.monotonic_ns()
    ring = agent.node.ring
    return {
        "uid": agent.node.uid,
        "pid": os.getpid(),
        "now": now,
        "epoch": time.time_ns(),
        "is_client": agent.is_root,
        "generation": agent.generation,
        "is_spilling": agent.node.outboxes.is_spilling,
        "num_events": len(ring) if ring is not None else None,
        "actors": [_actor(agent, cell, now) for cell in agent.cells],
        "calls": _calls(agent, now),
        "gpu": _gpu(),
        **process_state(os.getpid()),
    }


def _actor(agent: ProcAgent, cell: ActorCell, now: int) -> dict[str, Any]:
    record = cell.record
    doing = cell.in_hand.all()
    wait = cell.wait_in_hand()
    waits = [] if wait is None else agent.rings.asked(wait)
    body: dict[str, Any] = {
        "mesh": record.uid,
        "rank": record.rank,
        "name": record.name,
        "class": record.class_name,
        "labels": record.labels,
        "sizes": record.sizes,
        "owner": record.owner.uid,
        "status": _status(cell, is_waiting=wait is not None, is_running=bool(doing)),
        "doing": [
            {"method": call.method or "__init__", "seconds": (now - call.since) / 1e9}
            for call in doing[:_MOST_MISSING]
        ],
        "queue": cell.num_waiting,
        "num_ended": cell.in_hand.num_ended,
        "num_failed": cell.in_hand.num_failed,
        "waits": [[asked.proc.uid, asked.actor, asked.method] for asked in waits],
    }
    if cell.failure is not None:
        body["failure"] = cell.failure.report()[:_LONGEST_TEXT]
    return body


def _status(cell: ActorCell, *, is_waiting: bool, is_running: bool) -> str:
    if cell.failure is not None:
        return "failed"
    if cell.is_ended:
        return "stopped"
    if cell.is_ending:
        return "stopping"
    if cell.instance is None:
        return "starting"
    if is_waiting:
        return "waiting"
    if is_running:
        return "running"
    return "at the fence" if cell.is_holding else "idle"


def _calls(agent: ProcAgent, now: int) -> list[dict[str, Any]]:
    """Return the calls of this process that are not answered, the oldest first."""
    calls: list[dict[str, Any]] = []
    for sink in agent.node.calls.sinks():
        sent: SentCall | None = getattr(sink, "sent", None)
        if sent is None:
            continue
        _, since, mesh, rank, to_mesh, method, _, _ = sent
        missing = list(getattr(sink, "missing", ()))
        calls.append(
            {
                "mesh": mesh,
                "rank": rank,
                "to_mesh": to_mesh,
                "method": method or "__init__",
                "seconds": (now - since) / 1e9,
                "num_missing": len(missing),
                "missing": [
                    sink.target(member)  # type: ignore[attr-defined]
                    for member in missing[:_MOST_MISSING]
                ],
            }
        )
    return sorted(calls, key=lambda call: -call["seconds"])[:_MOST_CALLS]


def _gpu() -> Mapping[str, Any]:
    """Return the GPU memory that torch uses: ``allocated``, ``reserved`` and the ``device``.

    Empty if torch has not initialized CUDA.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {
        "allocated": cuda.memory_allocated(),
        "reserved": cuda.memory_reserved(),
        "device": cuda.current_device(),
    }
