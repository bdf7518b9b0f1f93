"""Answers questions to a process, a proc or the client, about itself."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from monarch.runtime.held import held_among, runs_by_itself
from monarch.runtime.observe.drain import pack, pack_rows
from monarch.runtime.observe.flight_record import flight_record
from monarch.runtime.observe.live_state import live_state
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.address import ProcAddress
from monarch.wire.message import DrainProc, HeldAsked, HeldProcs, LastRows, LookAtProc, ProfileProc

_LONGEST_SECONDS = 120.0

_busy = threading.Lock()


class ProcDesk:
    """Answers questions about a proc on the node's I/O loop, so that a busy actor delays no
    answer.
    """

    def __init__(self, agent: ProcAgent) -> None:
        self._agent = agent
        self._node = agent.node
        agent.node.on(LookAtProc, self._on_look)
        agent.node.on(DrainProc, self._on_drain)
        agent.node.on(ProfileProc, self._on_profile)
        agent.node.on(HeldAsked, self._on_held)

    def leave_rows(self, host: ProcAddress) -> None:
        """Send the last rows to the host, because the process ends."""
        if self._node.ring is not None:
            self._node.send(host, LastRows(self._node.uid), pack_rows(self._node.ring.rows()))

    def _on_look(self, order: LookAtProc) -> None:
        body = live_state(self._agent)
        if order.flight:
            body["flight"] = flight_record(places=order.places)
        self._node.answer(order, body)

    def _on_drain(self, order: DrainProc) -> None:
        ring = self._node.ring
        rows = [] if ring is None else ring.take() if order.takes else ring.rows()
        self._node.answer(order, pack_rows(rows))

    def _on_held(self, order: HeldAsked) -> None:
        owns, urls = bool(self._agent.owned_procs()), self._node.address.urls

        def look() -> None:  # Among all objects, which takes a moment.
            held = held_among(order.procs)
            if held and gc.isenabled():
                gc.collect()  # What refers to them may only be in cycles.
                held = held_among(order.procs)
            self._node.answer(order, HeldProcs(tuple(sorted(held)), runs_by_itself(owns, urls)))

        threading.Thread(target=look, name="monarch-held", daemon=True).start()

    def _on_profile(self, order: ProfileProc) -> None:

        def done(trace: bytes, error: str) -> None:
            self._node.answer(order, trace, error)

        profile(order.seconds, done)


def profile(seconds: float, done: Callable[[bytes, str], None]) -> None:
    """Begin a profile; at its end call ``done`` on a thread with a trace and an error.

    The trace is in Chrome's format, packed by zstd. If there is none, it is b"" and the error says
    why.
    """
    if "torch" not in sys.modules:
        done(b"", "this proc has not imported torch")
    elif not _busy.acquire(blocking=False):
        done(b"", "torch's profiler runs in this proc already")
    else:
        args = (min(max(seconds, 0.0), _LONGEST_SECONDS), done)
        threading.Thread(target=_run, args=args, name="monarch-profile", daemon=True).start()


def _run(seconds: float, done: Callable[[bytes, str], None]) -> None:
    data, error = b"", ""
    try:
        data = _record(seconds)
    except Exception as raised:  # Another profile may be under way; then only that is told.
        error = f"torch's profiler failed: {type(raised).__name__}: {raised}"
    finally:
        _busy.release()
    done(data, error)


def _record(seconds: float) -> bytes:
    from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, supported_activities

    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    # Without it, only operators of the thread that has begun it would be there.
    config = _ExperimentalConfig(profile_all_threads=True)
    wanted &= set(supported_activities())
    with profile(activities=wanted, experimental_config=config) as run:
        time.sleep(seconds)
    file, path = tempfile.mkstemp(suffix=".json")
    os.close(file)
    try:
        run.export_chrome_trace(path)
        with open(path, "rb") as trace:
            return pack(trace.read())
    finally:
        os.unlink(path)
