"""Notices procs that are alive but do not answer, and reports what they do.

From time to time, the I/O thread of each proc is asked a question. A proc that does not answer is
stopped, or stuck in the kernel, or has a thread that does not release the GIL. It is not dead, so
calls to it go on waiting, and the client is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monarch.config import settings
from monarch.core.heartbeats import Hangs
from monarch.runtime.answers import Response
from monarch.runtime.ends.stacks import ask_for_stacks, innermost_of_users, read_stacks
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.message import InspectProc, ProcReport

_STACKS_SECONDS = 0.2


class HangWatch:
    """Watches ``procs``; ``notice`` is called with a sentence when a proc hangs, and when it
    continues.

    All methods run on the node's I/O loop.
    """

    def __init__(
        self,
        node: Node,
        procs: Mapping[Uid, HostProc],
        stacks_path: Callable[[Uid], str],
        notice: Callable[[str], None],
    ) -> None:
        self._node = node
        self._procs = procs
        #: Returns the file that a proc writes its stacks to.
        self._path = stacks_path
        self._notice = notice
        self._hangs = Hangs(settings().hang_timeout_seconds)
        #: Why the procs hang that do.
        self._texts: dict[Uid, str] = {}
        self._is_ticking = False

    def start(self) -> None:
        """Begin to watch. The watch ends by itself when there are no procs."""
        if not self._is_ticking and settings().hang_timeout_seconds > 0:
            self._is_ticking = True
            self._later()

    def text(self, uid: Uid) -> str:
        """Return why a proc hangs; empty if it does not."""
        return self._texts.get(uid, "") if self._silence(uid) else ""

    def forget(self, uid: Uid) -> None:
        self._hangs.forget(uid)
        self._texts.pop(uid, None)

    def _silence(self, uid: Uid) -> float:
        return self._hangs.silence(uid, self._node.loop.time())

    def _later(self) -> None:
        self._node.loop.call_later(settings().hang_timeout_seconds / 3, self._tick)

    def _tick(self) -> None:
        if not self._procs:
            self._is_ticking = False
            return
        self._later()
        now = self._node.loop.time()
        up = [uid for uid, proc in self._procs.items() if proc.address is not None]
        for uid in self._hangs.due(up, now):
            self._ask(uid)
        for uid, _ in self._hangs.overdue(now):
            self._look(uid)

    def _ask(self, uid: Uid) -> None:
        address = self._procs[uid].address
        assert address is not None
        self._node.ask_on_loop(
            address, InspectProc(), lambda response: self._answered(uid, response)
        )

    def _answered(self, uid: Uid, response: Response[ProcReport]) -> None:
        silence = self._hangs.answered(uid, self._node.loop.time())
        self._texts.pop(uid, None)
        if silence is not None and not response.error and uid in self._procs:
            self._notice(f"{self._procs[uid].label} answers again, after {silence:.0f} s")

    def _look(self, uid: Uid) -> None:
        pid, started = self._procs[uid].pid, self._procs[uid].started
        state = _state_of(pid)
        if state in ("T", "t"):
            stopped = "its process is stopped, by a signal or a debugger"
            self._tell(uid, f"{stopped}; `kill -CONT {pid}` lets it go on")
            return
        ask_for_stacks(pid, started, self._path(uid))
        self._node.loop.call_later(
            _STACKS_SECONDS, lambda: self._tell(uid, self._stuck(uid, state))
        )

    def _stuck(self, uid: Uid, state: str) -> str:
        frame = innermost_of_users(read_stacks(self._path(uid)))
        last_seen = f", last seen in {frame}" if frame else ""
        if state == "D":
            return f"its process is stuck in the kernel (uninterruptible wait){last_seen}"
        return f"its process is alive but hangs holding the GIL{last_seen}"

    def _tell(self, uid: Uid, why: str) -> None:
        silence = self._silence(uid)
        if uid in self._procs and silence:
            proc = self._procs[uid]
            self._texts[uid] = why
            self._notice(
                f"{proc.label} (pid {proc.pid}) has not answered for {silence:.0f} s: {why}. "
                "Calls to it go on waiting."
            )


def _state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1]
    except OSError:
        return ""
