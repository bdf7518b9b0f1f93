"""The loop in which a process waits for input.

Events of sockets, file descriptors and timers, and calls from other threads, are all handled here,
in order of arrival. Callbacks must not block: slow work needs a thread of its own.

The loop has a thread, and may lend its turn: an actor's thread that has nothing to do polls in its
place, and so gets its next message without a thread switch. While that thread handles the message,
no thread polls; the loop's own thread takes over if that lasts longer than a moment.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import logging
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from monarch.net.eagerness import Eagerness
from monarch.net.loop import Timer
from monarch.net.poll_turn import PollTurn
from monarch.net.poller import READ, WRITE, new_poller, new_wake_up
from monarch.net.put_off import PutOff
from monarch.net.rare_log import RareLog

_log = logging.getLogger("monarch.net")


class IoLoop:
    """Runs callbacks on one thread at a time: when a source is readable, when a timer is due, or
    when asked. With ``lends``, that may be a thread that calls ``serve``."""

    def __init__(self, name: str = "monarch-io", *, lends: bool = False) -> None:
        self._poll = new_poller()
        #: What to call when a descriptor can be read, or written.
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}
        #: Actions to run next. Any thread appends.
        self._soon: deque[Callable[[], None]] = deque()
        #: A heap of timers: when each is due, a number for timers of the same time, the timer.
        self._timers: list[tuple[float, int, Timer]] = []
        self._tie = itertools.count()
        #: Ends a poll in progress. Any thread sets it.
        self._wake = new_wake_up()
        self._wake_fd = self._wake.fileno()
        #: Guards ``_has_ended``: once it is true, ``_wake`` is closed.
        self._wake_lock = threading.Lock()
        self._has_ended = False
        self._poll.register(self._wake_fd, READ)
        self._stopping = False
        self._turn = PollTurn(lends)
        #: Whether a thread that waits polls for a moment before it sleeps.
        self._eagerness = Eagerness()
        #: The same for threads that never sleep in this loop; see ``serve_a_moment``.
        self._eagerness_of_moments = Eagerness()
        self._rare = RareLog(_log)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        #: Called on the loop's thread with the error that ended the loop; None: it is raised there.
        self.on_broken: Callable[[Exception], None] | None = None

    def start(self) -> None:
        allow_many()
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller runs on the loop, in a callback."""
        return threading.get_ident() == self._turn.holder

    def time(self) -> float:
        return time.monotonic()

    def call_soon(self, action: Callable[[], None]) -> bool:
        """Run ``action`` on the loop, in order of the calls. From any thread.

        Once the loop has ended, the action is dropped, and false is returned.
        """
        if self.is_current():
            self._soon.append(action)
            return True
        with self._wake_lock:
            # The number of a closed descriptor may be in use again by now.
            if self._has_ended:
                return False
            self._soon.append(action)
            self._wake.set()
            return True

    def _end_poll(self) -> bool:
        """Interrupt the poll in progress; return false if the loop has ended."""
        with self._wake_lock:
            if not self._has_ended:
                self._wake.set()
            return not self._has_ended

    def nudge(self) -> None:
        """Wake the polling thread, so that it checks whether its wait is over. From any thread."""
        if not self.is_current():
            self._end_poll()

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` on the loop after ``seconds``. From any thread."""
        timer = Timer(self.time() + seconds, action)
        self.call_soon(lambda: heapq.heappush(self._timers, (timer.when, next(self._tie), timer)))
        return timer

    def add_reader(self, fd: int, ready: Callable[[], object]) -> None:
        """Call ``ready`` whenever ``fd`` can be read. On the loop only."""
        self._watch(fd, self._readers, ready)

    def remove_reader(self, fd: int) -> None:
        """Stop watching ``fd``, if it is watched. On the loop only, before it is closed."""
        self._watch(fd, self._readers, None)

    def add_writer(self, fd: int, ready: Callable[[], object]) -> None:
        """Call ``ready`` whenever ``fd`` can be written. On the loop only."""
        self._watch(fd, self._writers, ready)

    def remove_writer(self, fd: int) -> None:
        """Stop watching ``fd``, if it is watched. On the loop only, before it is closed."""
        self._watch(fd, self._writers, None)

    def _watch(
        self,
        fd: int,
        callbacks: dict[int, Callable[[], object]],
        ready: Callable[[], object] | None,
    ) -> None:
        """Set the callback of ``fd`` in ``callbacks``, or remove it if ``ready`` is None.

        The poller then watches ``fd`` for the events that still have a callback.
        """
        registered = self._wanted(fd)
        if ready is not None:
            callbacks[fd] = ready
        elif callbacks.pop(fd, None) is None:
            return
        wanted = self._wanted(fd)
        if not wanted:
            self._poll.unregister(fd)
        elif registered:
            self._poll.modify(fd, wanted)
        else:
            self._poll.register(fd, wanted)

    def _wanted(self, fd: int) -> int:
        return (READ if fd in self._readers else 0) | (WRITE if fd in self._writers else 0)

    def run_on_loop(self, action: Callable[[], Any], timeout: float | None = None) -> Any:
        """Run ``action`` on the loop and return its result, or raise its error.

        Blocks the calling thread unless it is the loop's own. Raises ``TimeoutError`` after
        ``timeout`` seconds, and ``RuntimeError`` if the loop has ended.
        """
        if self.is_current():
            return action()
        done = threading.Event()
        result: list[Any] = [None, None]

        def run() -> None:
            try:
                result[0] = action()
            except BaseException as error:
                result[1] = error
            done.set()

        # Before its end, the loop runs all that it has taken.
        if not self.call_soon(run):
            raise RuntimeError("the I/O loop has ended")
        if not done.wait(timeout):
            raise TimeoutError("the I/O thread did not answer")
        if result[1] is not None:
            raise result[1]
        return result[0]

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after the actions that were handed over so far. Idempotent."""
        self.call_soon(self._set_stopping)
        if self._thread.is_alive() and not self.is_current():
            self._thread.join(timeout)

    def _set_stopping(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        self._turn.begin()
        try:
            while not self._stopping:
                self.iterate(self.timeout())
                if self._turn.is_wanted:
                    self._turn.lend()
        except Exception as error:
            if self.on_broken is None:
                raise
            self.on_broken(error)
        with self._wake_lock:
            self._has_ended = True
            self._wake.close()
            self._poll.close()
        # A thread may wait for an action that it added at the last moment.
        self._run_soon()
        self._turn.end()

    def iterate(self, timeout: float | None) -> None:
        """Wait for events, at most ``timeout`` seconds, and handle them. Only for the thread that
        has the turn."""
        self._handle(self._poll.poll(timeout))

    def iterate_eagerly(self) -> bool:
        """Poll for a moment without sleeping, and handle the events; return false if there were
        none. Only for the thread that has the turn."""
        if self._soon or not self._eagerness.is_due():
            return False
        events: list[tuple[int, int]] = []

        def look() -> bool:
            nonlocal events
            events = self._poll.poll(0)
            return bool(events)

        self._eagerness.look(look)
        self._handle(events)
        return bool(events)

    def _handle(self, ready_fds: list[tuple[int, int]]) -> None:
        for fd, events in ready_fds:
            if fd == self._wake_fd:
                self._wake.clear()
                continue
            # Both callbacks are also told of errors. One may remove the other, or itself.
            if events & ~WRITE and (ready := self._readers.get(fd)) is not None:
                self._guard(ready)
            if events & ~READ and (ready := self._writers.get(fd)) is not None:
                self._guard(ready)
        self._run_soon()
        self._run_timers()

    # For guests.

    def serve(
        self, until: Callable[[], bool], timeout: float | None = None, *, is_eager: bool = False
    ) -> None:
        """Poll on this thread until ``until()``, or for ``timeout`` seconds; if ``is_eager``, first
        for a moment without sleeping.

        Returns early if the loop does not lend its turn, or if another thread has it; on the main
        thread also when a signal has come, after its handler.
        """
        if until():
            return
        if threading.get_ident() != threading.main_thread().ident:
            self._serve(until, timeout, is_eager)
            return
        if self._stopping:
            return
        with PutOff(self._wake.set) as signals:
            self._serve(lambda: bool(signals.noted) or until(), timeout, is_eager)

    def _serve(self, until: Callable[[], bool], timeout: float | None, is_eager: bool) -> None:
        if not self.take_turn():
            return
        deadline = None if timeout is None else self.time() + timeout
        try:
            if is_eager:
                self.iterate_eagerly()
            while not until() and not self._stopping:
                seconds = self.timeout()
                if deadline is not None:
                    seconds_left = deadline - self.time()
                    if seconds_left <= 0:
                        return
                    seconds = seconds_left if seconds is None else min(seconds_left, seconds)
                self.iterate(seconds)
        finally:
            self.give_turn_back()

    def serve_a_moment(self, until: Callable[[], bool]) -> None:
        """Poll on this thread until ``until()``, but only for a moment, and without sleeping.

        For a thread with a loop of its own, which has nothing else to do now. Returns at once if
        polling was in vain lately, or if another thread polls and does not give way.
        """
        if until() or self._stopping:
            return
        if not self._eagerness_of_moments.is_due():
            self._turn.hurry()
        elif threading.get_ident() == threading.main_thread().ident:
            with PutOff(self._wake.set):
                self._serve_a_moment(until)
        else:
            self._serve_a_moment(until)

    def _serve_a_moment(self, until: Callable[[], bool]) -> None:
        if not self.take_turn():
            return

        def look() -> bool:
            if events := self._poll.poll(0):
                self._handle(events)
            return until()

        has_come = False
        try:
            has_come = self._eagerness_of_moments.look(look)
        finally:
            self._turn.give_back(at_once=not has_come or self._stopping)

    def take_turn(self) -> bool:
        """Take the turn for the calling thread; return whether it polls from now on, until it gives
        the turn back."""
        return self._turn.take(self._end_poll)

    def give_turn_back(self) -> None:
        self._turn.give_back(at_once=self._stopping)

    def fileno(self) -> int:
        """Return a descriptor that can be read when ``iterate`` has events to handle."""
        return self._poll.fileno()

    def timeout(self) -> float | None:
        """Return the seconds until the next timer is due; 0 if something waits already, None if
        there is no timer. Only for the thread that has the turn.
        """
        if self._soon:
            return 0.0
        if not self._timers:
            return None
        # The poll counts in milliseconds: with one too few, it would spin until the time is up.
        return max(0.0, self._timers[0][0] - self.time()) + 0.001

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self._guard(self._soon.popleft())

    def _run_timers(self) -> None:
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.action is not None:
                self._guard(timer.action)

    def _guard(self, action: Callable[[], object]) -> None:
        # One broken callback must not end the process's only receiver.
        try:
            action()
        except Exception as error:
            last = error.__traceback__
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            position = (last.tb_frame.f_code, last.tb_lineno) if last is not None else None
            self._rare.exception((type(error), position), "an I/O callback failed")


# A connection in each direction; a host's agent also reads two streams of each proc's output.
_FILES_HERE, _FILES_ELSEWHERE = 4, 2
_MANY = (65_536, 10_240)  # macOS allows no more than the second, whatever it says


def allow_many() -> None:
    """Raise this process's own limit of open files as far as the system allows.

    Most systems begin with 1,024, for the sake of programs that use ``select``. A client of a
    thousand hosts has more connections than that, and cannot work without any of them.
    """
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    for many in _MANY:
        wanted = many if highest == resource.RLIM_INFINITY else min(many, highest)
        if limit >= wanted:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))
            return


def check_room_for(num_here: int, num_elsewhere: int) -> None:
    """Raise ``OSError`` if more procs would need more open files than this process may have.

    They are ``num_here`` procs on a host in this process, and ``num_elsewhere`` on others. Without
    this check, a peer whose connection cannot be accepted would be waited for forever.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        num_open = len(os.listdir("/dev/fd"))
    except OSError:
        return
    wanted = num_open + _FILES_HERE * num_here + _FILES_ELSEWHERE * num_elsewhere
    if wanted > limit:
        raise OSError(
            errno.EMFILE,
            f"this process may have {limit} files open, and with {num_here + num_elsewhere} more "
            f"procs it would have {wanted}: raise the limit with `ulimit -n {2 * wanted}`",
        )
