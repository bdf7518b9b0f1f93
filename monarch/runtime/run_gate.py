"""The generation of the workspace that a process runs, and which calls it may run.

Every call carries the generation of the process that sent it. A rank with an older generation would
run other code than the rest of its mesh, in a collective for instance: so it refuses the call, and
names the generation. A rank with a newer generation runs the call: old code cannot come back.
Generations are counted by the client at the root, so those of another client's processes do not
matter here.
"""

from __future__ import annotations

import threading

from monarch.wire.address import Uid
from monarch.wire.message import Call


class RunGate:
    """Decides whether this process may run a call, by the generation of the caller's code.

    ``root`` is the client of this program; ``why_behind`` is the text of a refusal.
    ``code_generation`` is the newest generation that changed code or files that this process uses;
    in a client, that one of its procs uses.
    """

    def __init__(self, root: Uid) -> None:
        self.root = root
        self.generation = 0
        self.code_generation = 0
        self.why_behind = ""
        self._taken_back = 0
        self._divided_at: list[int] = [0]
        #: Notified when there is another generation.
        self._is_other = threading.Condition()

    def begin_at(self, generation: int) -> None:
        """Record that all code of this process is of this generation."""
        self.generation = self.code_generation = generation

    def switch(self, generation: int, *, divides: bool, changes: bool) -> None:
        """Run ``generation`` from now on.

        ``divides``: some hosts keep older code, so calls that are under way to both kinds of hosts
        are refused. ``changes``: the push changed files that this process has loaded, so its code
        is of this generation, too.
        """
        self.generation = generation
        if changes:
            self.code_generation = generation
        if divides:
            self._divided_at = [self._divided_at[-1], generation]
        with self._is_other:
            self._is_other.notify_all()

    def wait_beyond(self, generation: int, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a newer generation than this; return whether it
        runs."""
        with self._is_other:
            return self._is_other.wait_for(lambda: self.generation > generation, timeout)

    def take_back(self, generation: int, previous: int) -> None:
        """Go back from ``generation`` to ``previous``.

        Calls that processes of ``generation`` have sent may still arrive, and are run.
        """
        self._taken_back = max(self._taken_back, generation)
        self.generation = previous
        self.code_generation = min(self.code_generation, previous)
        if self._divided_at[-1] == generation:
            self._divided_at.pop()

    def is_behind(self, call: Call) -> bool:
        """Return whether a call must not run here, because its sender runs newer code.

        Calls of another program, and of a generation that was taken back, may run.
        """
        return (
            call.generation > self.generation
            and call.root == self.root
            and call.generation > self._taken_back
        )

    def has_come_between(self, call: Call) -> bool:
        """Return whether a switch that divides the receivers of a call happened while the call was
        under way.

        Call it only for calls with ``crosses`` set.
        """
        return call.crosses <= self._divided_at[-1] and call.root == self.root
