"""Streams at a worker: each is a lane with a thread of its own, so that they run side by side.

The main stream is the actor's own thread, until there is a second one. On CUDA a lane has a CUDA
stream too. A value that passes from one lane to another carries an event that the other's stream
waits for: the threads only issue.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Collection
from typing import Any

from monarch.runtime import process
from monarch.runtime.context import running

_CLOSE_SECONDS = 5.0


class Device:
    """The CPU: a device without streams. ``Cuda`` overrides the methods.

    An operation on the CPU is done when its function returns, so that there is nothing to wait for.
    """

    def stream(self) -> Any:
        """Return a new stream of the device; ``None`` for the CPU."""
        return None

    def own(self) -> Any:
        """Return the device's default stream; ``None`` for the CPU."""
        return None

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which ``stream`` is this thread's current stream."""
        return contextlib.nullcontext()

    def mark(self) -> Any:
        """Return a mark for ``await_mark``, behind the work that the current stream has so far.

        It is ``None`` for the CPU.
        """
        return None

    def await_mark(self, mark: Any) -> None:
        """Make later work of the current stream wait for a mark."""

    def keep_for(self, value: Any, stream: Any = None) -> None:
        """Keep the allocator from reusing the memory before ``stream``, or the current stream, is
        done with it."""

    def put_before_own(self, stream: Any = None) -> None:
        """Make later work of the device's default stream wait for ``stream``, or the current
        one."""

    def put_after_own(self, stream: Any = None) -> None:
        """Make later work of ``stream``, or the current one, wait for the device's default
        stream."""


class Cuda(Device):
    """A GPU, which queues operations: a lane that takes another stream's value waits for its event.

    All threads that choose no stream use the device's default stream: the actors and the worker do.
    Other streams do not wait for it by themselves, nor it for them.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def stream(self) -> Any:
        return self._cuda.Stream()

    def own(self) -> Any:
        return self._cuda.default_stream()

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        # The stream also sets the thread's device, which in a new thread is the first one.
        return self._cuda.stream(stream)  # type: ignore[no-any-return]

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record(self._cuda.current_stream())
        return event

    def await_mark(self, mark: Any) -> None:
        self._cuda.current_stream().wait_event(mark)

    def keep_for(self, value: Any, stream: Any = None) -> None:
        if getattr(value, "is_cuda", False):
            value.record_stream(stream or self._cuda.current_stream())

    def put_before_own(self, stream: Any = None) -> None:
        self.own().wait_stream(stream or self._cuda.current_stream())

    def put_after_own(self, stream: Any = None) -> None:
        (stream or self._cuda.current_stream()).wait_stream(self.own())


class StreamLane:
    """A stream of a worker, whose thread does the work that ``put`` gets, in order.

    Lanes that may wait for each other share one ``moved``, which is notified when a lane has
    advanced.
    """

    def __init__(
        self, name: str, device: Device, stream: Any, moved: threading.Condition | None = None
    ) -> None:
        self._device = device
        self.stream = stream
        self._moved = moved or threading.Condition()
        #: The work to be done; ``None`` ends the thread.
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_left = 0
        #: The error that ended this lane.
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        with self._moved:
            self._num_left += 1
        self._work.put(lambda: context.run(_as_call, work))

    def close(self) -> None:
        """End the lane's thread. A thread that waits for ever is left until the process ends."""
        self._work.put(None)
        self._thread.join(_CLOSE_SECONDS)

    @property
    def is_idle(self) -> bool:
        return self._num_left == 0

    def _run(self) -> None:
        import torch

        with torch.no_grad(), self._device.use(self.stream):
            while (work := self._work.get()) is not None:
                try:
                    if self.error is None:
                        work()
                except BaseException as error:
                    self.error = error  # No operation raised it: failed values are poison.
                with self._moved:
                    self._num_left -= 1
                    self._moved.notify_all()


def drain_all(lanes: Collection[StreamLane], moved: threading.Condition) -> None:
    """Wait until all lanes have done their work.

    If a lane has ended with an error, the error is raised at once, as other lanes may wait for that
    lane for ever.
    """
    with moved:
        moved.wait_for(lambda: have_come_to_rest(lanes))
        error = _ended(lanes)
    if error is not None:
        raise error


def have_come_to_rest(lanes: Collection[StreamLane]) -> bool:
    """Whether all lanes are idle, or one has ended with an error."""
    return _ended(lanes) is not None or all(lane.is_idle for lane in lanes)


def _ended(lanes: Collection[StreamLane]) -> BaseException | None:
    return next((lane.error for lane in lanes if lane.error is not None), None)


def _as_call(work: Callable[[], None]) -> None:
    """Run the work of a lane as a call of its own.

    So whoever looks at held calls sees when the work has ended.
    """
    now = running.get()
    if now is None:
        work()
        return
    running.set(now._replace())
    try:
        work()
    finally:
        watch = process.current().watch
        if watch is not None:
            watch.ended()
