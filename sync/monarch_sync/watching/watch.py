"""Saves, as they happen: which paths of a workspace were touched.

A watcher is used in one of two ways. A program that iterates over it is woken by each save. A
program that calls `changes` gets the paths that were touched since its last call, with the proof
that no other file has changed; between two calls no thread runs.

A burst of events may leave questions open, so the watcher waits: for a file that is being written,
for a file that has vanished (editors delete a file and write it again), and while git holds its
index lock, so that a branch switch is one generation. If events were lost, rules have changed, or
there were too many events, everything is looked at.

On file systems that do not report all changes, and if the system has no watches left, everything is
looked at again and again. (`watchfiles` could poll there, but it compares whole seconds of file
times, and looks into ignored folders.) Without inotify, `watchfiles` wakes the program that
iterates (`system_watch.py`), and `changes` asks the program to look at everything.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from monarch_sync.errors import WatchEnded, WorkspaceMissing
from monarch_sync.touched import Touched
from monarch_sync.watching.cover import CannotWatch
from monarch_sync.watching.git_locks import GitLocks
from monarch_sync.watching.inotify import is_there
from monarch_sync.watching.live_watch import LiveWatch
from monarch_sync.workspace import Workspace

_SETTLE_SECONDS = 0.001  # after the last event of a save
_BURST = 10  # touched paths
_BURST_SECONDS = 0.010  # after the last event of so many; more of them are waited for longer
_BURST_SECONDS_EACH = 0.0005
_MAX_BURST_SECONDS = 0.2
_STILL_A_BURST_SECONDS = 1.0  # later events belong to the burst if they follow within this time
_RETURN_SECONDS = 0.010  # for vanished files to come back
_MAX_SETTLE_SECONDS = 1.0
_MOST_COUNTED = 400
_LARGE = 100  # touched paths: a program that writes a tree
_MAX_SETTLE_SECONDS_OF_LARGE = 5.0
_WRITE_SECONDS = 1.0  # for a file that is being written to be closed
_FLOOD = 1000  # touched paths at once
_QUIET_SECONDS = 0.3  # before the look at everything that follows a flood
_IDLE_SECONDS = 1.0  # between two looks at folders that raise no events
_POLL_SHARE = 10  # the least time from one look to the next, in durations of a look


def quiet_seconds(num_touched: int) -> float:
    """Return how many seconds must pass without a change until the touched paths count as complete.

    A save by hand is complete at once. A program that writes many files pauses in between, so the
    time grows with ``num_touched``.
    """
    if num_touched < _BURST:
        return _SETTLE_SECONDS
    return min(max(_BURST_SECONDS, _BURST_SECONDS_EACH * num_touched), _MAX_BURST_SECONDS)


class Watcher:
    """Watches a workspace. Iterate over it: it yields sets of touched paths; an empty set asks for
    a look at everything.

    The first set is empty, because files may have changed before the watch began, unless `changes`
    was called before. When a watched folder is deleted, an empty set reports that, and another
    empty set follows when the folder is back. The iteration ends when ``close`` is called. Raises
    ``WorkspaceMissing`` if a folder does not exist when the watcher is made, and ``WatchEnded`` if
    a folder stays away for ``gone_seconds``.

    If the system gives no events (``polls_because`` says why), the watcher asks for a look at
    everything every ``poll_seconds``, and less often if a look takes long. If the system may lose
    events silently, it asks for that every ``audit_seconds``.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        poll_seconds: float = 0.5,
        audit_seconds: float = 5.0,
        gone_seconds: float = 600.0,
    ) -> None:
        self._workspace = workspace
        self._poll_seconds = poll_seconds
        self._audit_seconds = audit_seconds
        self._gone_seconds = gone_seconds
        #: The watches; None while there are none.
        self._live: LiveWatch | None = None
        #: The process that made the watches: a forked child gets no events.
        self._pid = os.getpid()
        self._is_closed = threading.Event()
        self._git = GitLocks(workspace, self._is_closed)
        #: Guards `_waker`.
        self._lock = threading.Lock()
        #: A pipe that wakes the iteration up; -1 while nobody iterates.
        self._waker = -1
        #: Paths touched in a row, and until when. A log that grows all the time is one path.
        self._burst: tuple[frozenset[str], float] = frozenset(), 0.0
        #: Why there are no events here; "" if there are.
        self.polls_because = ""
        for folder in workspace.folders:
            folder.check()

    @property
    def is_iterated(self) -> bool:
        """Whether a program iterates over the watcher. The iteration takes the touched paths, so
        ``changes`` returns None then."""
        return self._waker >= 0

    def close(self) -> None:
        """End the iteration, from any thread, and release all watches. Idempotent."""
        with self._lock:
            self._is_closed.set()
            if self._waker >= 0:
                os.write(self._waker, b"\1")
            else:
                self._release()

    def rest(self) -> None:
        """Release all watches until the next call of `changes` or the next iteration."""
        if not self.is_iterated:
            self._release()

    def changes(self) -> Touched | None:
        """Return all paths touched since the last call; None if everything has to be looked at.

        Every file saved before this call is in the result of this or an earlier call. The first
        call returns None, and so does any call for which the watcher cannot prove that nothing is
        missing. For one thread at a time. Raises ``WorkspaceMissing`` if a folder of the workspace
        is gone.
        """
        if self.is_iterated or self._is_closed.is_set() or os.getpid() != self._pid:
            return None  # In a forked child, events are the parent's.
        live = self._live
        self._git.wait(live.look if live is not None else lambda: 0)
        if live is not None and live.catch_up():
            return self._take(live.folders.touched)
        self._start()
        self._git.wait()
        return None

    def settle(self) -> None:
        """Wait until git has finished its work."""
        self._git.wait()

    def _start(self) -> None:
        """Make new watches for the whole workspace, if this system has inotify. If they would miss
        changes, set ``polls_because`` instead. Paths that are touched after this call are not
        missed."""
        self._release()
        self.polls_because = ""
        if not is_there():
            for folder in self._workspace.folders:
                folder.check()
            return
        try:
            self._live = LiveWatch(self._workspace)
            self._git.rely()
        except CannotWatch as error:
            self.polls_because = str(error)

    def _release(self) -> None:
        live, self._live = self._live, None
        self._git.doubt()
        if live is not None:
            live.close()

    def _take(self, paths: set[str]) -> Touched:
        assert self._live is not None
        folders = self._live.folders
        for path in folders.written.keys() & paths:
            del folders.written[path]
        touched = Touched(paths, folders.moves if paths == folders.touched else ())
        folders.moves.clear()
        folders.touched = folders.touched - paths
        folders.vanished.clear()
        return touched

    def __iter__(self) -> Iterator[AbstractSet[Path]]:
        with self._lock:
            woken, self._waker = os.pipe()
        try:
            if self._live is None and not self._is_closed.is_set():
                self._start_when_there()
                self._git.wait()
                yield set()
            while not self._is_closed.is_set():
                if self._live is not None:
                    yield from self._bursts(self._live, woken)
                elif self.polls_because:
                    yield from self._looks()
                else:
                    yield from self._told()
                if not self._is_closed.is_set():
                    if not self._are_all_there():
                        yield set()
                    self._start_when_there()
                    self._git.wait()
                    yield set()
        finally:
            with self._lock:
                os.close(woken)
                os.close(self._waker)
                self._waker = -1
                self._release()

    def _bursts(self, live: LiveWatch, woken: int) -> Iterator[AbstractSet[Path]]:
        """Yield the touched paths, a burst at a time, until events no longer report all changes."""
        folders, needs_audit = live.folders, False
        while not self._is_closed.is_set():
            if not folders.touched:
                live.wait(_QUIET_SECONDS if needs_audit else _IDLE_SECONDS, woken)
                live.read()
            if folders.touched:
                self._settle(live, woken)
            elif needs_audit:
                needs_audit = False
                yield set()
            if self._is_closed.is_set() or not self._are_all_there() or not live.is_sound():
                return
            now = time.monotonic()
            open_since = {p: t for p, t in folders.written.items() if now - t < _WRITE_SECONDS}
            touched = folders.touched - open_since.keys()
            if touched:
                needs_audit = needs_audit or len(touched) >= _FLOOD
                self._burst = self._in_burst(touched), time.monotonic()
                yield self._take(touched)
            elif folders.touched:
                live.wait(min(open_since.values()) + _WRITE_SECONDS - now, woken)
                live.read()

    def _settle(self, live: LiveWatch, woken: int) -> None:
        """Wait until the present burst of changes is over, or until a deadline."""
        folders, began = live.folders, time.monotonic()
        while not self._is_closed.is_set() and not folders.is_lost:
            num_touched = len(folders.touched)
            if num_touched < _LARGE:
                num_touched = len(self._in_burst(folders.touched))
            seconds = quiet_seconds(num_touched)
            if folders.vanished:
                seconds = max(seconds, _RETURN_SECONDS)
            is_large = num_touched >= _LARGE
            most = _MAX_SETTLE_SECONDS_OF_LARGE if is_large else _MAX_SETTLE_SECONDS
            seconds_left = began + most - time.monotonic()
            if seconds_left > 0 and live.wait(min(seconds, seconds_left), woken):
                live.read()
            elif self._git.wait(live.look):
                # Its last events are still to be read.
                began = time.monotonic()
                live.read()
            else:
                return

    def _in_burst(self, touched: set[str]) -> frozenset[str]:
        """Return the touched paths, together with the paths of the last burst if that burst has
        only just ended: a slow writer pauses and goes on. Only for counting; the paths of a very
        large burst are not all returned.
        """
        burst, until = self._burst
        if len(touched) >= _LARGE or time.monotonic() - until > _STILL_A_BURST_SECONDS:
            return frozenset(touched)
        # A burst is not counted beyond this number.
        return burst if len(burst) >= _MOST_COUNTED else burst | touched

    def _told(self) -> Iterator[set[Path]]:
        """Yield the paths that the system reports as changed. If the system cannot report changes,
        poll instead.
        """
        # Few systems need it, and it takes a while to load.
        from monarch_sync.watching.system_watch import SystemWatch

        try:
            for touched in SystemWatch(self._workspace, self._is_closed, self._audit_seconds):
                self._git.wait()
                yield touched
        except (OSError, RuntimeError) as error:
            if self._are_all_there():
                self.polls_because = str(error)
                yield from self._looks()

    def _looks(self) -> Iterator[set[Path]]:
        """Yield empty sets again and again; each asks the caller to look at everything. If the
        caller's look takes long, the pause before the next set is longer.
        """
        pause = self._poll_seconds
        while not self._is_closed.wait(pause) and self._are_all_there():
            self._git.wait()
            started = time.monotonic()
            yield set()
            pause = max(self._poll_seconds, _POLL_SHARE * (time.monotonic() - started))

    def _are_all_there(self) -> bool:
        return all(folder.local.is_dir() for folder in self._workspace.folders)

    def _start_when_there(self) -> None:
        """Make new watches as soon as all folders exist; return without watches if the watcher is
        closed. Raises ``WatchEnded`` if a folder stays away for ``gone_seconds``.
        """
        deadline = time.monotonic() + self._gone_seconds
        while not self._is_closed.is_set():
            try:
                self._start()
                return
            except WorkspaceMissing as error:
                if time.monotonic() > deadline:
                    raise WatchEnded(error.folder, "the folder was deleted") from None
            self._is_closed.wait(self._poll_seconds / 5)
