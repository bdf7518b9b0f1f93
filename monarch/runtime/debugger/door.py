"""The desk of a proc for visitors, such as debuggers. It costs nothing until a visitor comes."""

from __future__ import annotations

import os
import sys
import threading
import time
from bdb import BdbQuit
from types import FrameType
from typing import Any

from monarch.config import settings
from monarch.runtime.observe.process_groups import hold_process_groups
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.wire.message import (
    AbortGroups,
    BreakPlace,
    ClocksStand,
    DapOpened,
    EnvAsked,
    EnvSet,
    Message,
    PeekLine,
    StacksAsked,
    StopAt,
)

_QUESTIONS: tuple[type[Message], ...] = (
    EnvAsked, EnvSet, StacksAsked, PeekLine, StopAt, BreakPlace, DapOpened, AbortGroups,
)  # fmt: skip
_CODE_SECONDS = 5.0
_SWITCH_SECONDS = 60.0
_POLL_SECONDS = 0.01


class ObserveDoor:
    """The door of one proc. ``open`` makes ``breakpoint()`` hold the call that calls it."""

    def __init__(self, agent: ProcAgent, config: ProcConfig) -> None:
        self._agent = agent
        self._config = config
        self._pid = os.getpid()
        self._holds: Any = None
        self._looks: Any = None
        self._lock = threading.Lock()
        self._promised: dict[str, tuple[int, float]] = {}

    def open(self) -> None:
        node = self._agent.node
        sys.breakpointhook = self._breakpoint
        node.on(ClocksStand, self._on_clocks)
        for kind in _QUESTIONS:
            node.on(kind, self._on_asked)
        if settings().on_error:
            self._agent.watch = self
        for place in self._config.breaks:
            self._looking().arm(place)

    @property
    def holds(self) -> Any:
        """The held calls of this process; made at the first one."""
        with self._lock:
            if self._holds is None:
                # Imported when used: it brings pdb.
                from monarch.runtime.debugger.holds import ProcHolds

                config = self._config
                self._holds = ProcHolds(self._agent, config.mesh, config.name, config.rank)
                self._agent.watch = self
            return self._holds

    def _breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        wanted = os.environ.get("PYTHONBREAKPOINT", "")
        if wanted == "0":
            return None
        if os.getpid() != self._pid or wanted not in ("", "pdb.set_trace"):
            return sys.__breakpointhook__(*args, **kwargs)
        frame: FrameType = sys._getframe(1)
        self.holds.at_breakpoint(frame)
        return None

    def close(self) -> None:
        """Let held calls go on with an error, because the proc ends."""
        if self._holds is not None:
            self._holds.close()

    # The methods that cells call: see CallWatch.

    def begins(self) -> None:
        if self._looks is not None:
            self._looks.call_begins()

    def raised(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) or isinstance(error, BdbQuit):
            return False
        is_wanted = settings().on_error == "all" or self.holds.has_call()
        if settings().on_error == "first":
            is_wanted = is_wanted or not self._agent.held_time.is_held
        return is_wanted and bool(self.holds.at_error(error))

    def ended(self) -> None:
        if self._looks is not None:
            self._looks.call_ends()
        if self._holds is not None:
            self._holds.ended()

    def is_early(self, actor: str) -> bool:
        promised = self._promised.get(actor)
        if promised is None:
            return False
        generation, deadline = promised
        if self._agent.generation == generation and time.monotonic() < deadline:
            return True
        del self._promised[actor]
        return False

    def await_code(self, actor: str) -> None:
        """Wait while new code is on its way to the actor, which shows as a fence that waits for
        it."""
        deadline = time.monotonic() + _CODE_SECONDS
        if actor in self._promised:
            deadline = self._promised[actor][1]
        elif self.holds.runs_now(actor):
            return
        while time.monotonic() < deadline and not self._agent.fences.awaits(actor):
            time.sleep(_POLL_SECONDS)
        if self._agent.fences.awaits(actor):
            until = time.monotonic() + _SWITCH_SECONDS
            self._promised.setdefault(actor, (self._agent.generation, until))
        else:
            sys.stderr.write("redo: no new code has come, so the call runs again on the same\n")

    def _on_asked(self, question: Message) -> None:
        self._looking().take(question)

    def _looking(self) -> Any:
        if self._looks is None:
            # Imported when used, like all that few ask for.
            from monarch.runtime.debugger.looks import Looks

            config = self._config
            member = config.rank, config.labels, config.sizes
            self._looks = Looks(self._agent, lambda: self.holds, member)
        return self._looks

    def _on_clocks(self, order: ClocksStand) -> None:
        self._agent.clocks_stand(order.is_held)
        hold_process_groups(order.is_held)
