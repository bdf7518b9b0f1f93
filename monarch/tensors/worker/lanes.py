"""Streams at a worker: each is a lane with a thread of its own, so that they run side by side.

The main stream is the actor's own thread, until there is a second one. On CUDA a lane has a CUDA
stream too, and what passes from one lane to another brings an event that the other's stream waits
for: the threads only issue.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Device(Protocol):
    """What lanes need of an accelerator."""

    def stream(self) -> Any: ...
    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]: ...
    def mark(self) -> Any: ...
    def await_mark(self, mark: Any) -> None: ...
    def keep_for(self, value: Any) -> None: ...


class Cpu:
    """A thread that has returned from an operation has done it."""

    def stream(self) -> None:
        return None

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def mark(self) -> None:
        return None

    def await_mark(self, mark: Any) -> None:
        pass

    def keep_for(self, value: Any) -> None:
        pass


class Cuda:
    """Operations are queued: who takes a value from another stream waits for its event."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def stream(self) -> Any:
        return self._cuda.Stream()

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        # For `None` nothing changes, as torch.cuda.stream has it.
        used: contextlib.AbstractContextManager[Any] = self._cuda.stream(stream)
        return used

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record(self._cuda.current_stream())
        return event

    def await_mark(self, mark: Any) -> None:
        self._cuda.current_stream().wait_event(mark)

    def keep_for(self, value: Any) -> None:
        """The allocator must not give the memory away before this stream is done with it."""
        if getattr(value, "is_cuda", False):
            value.record_stream(self._cuda.current_stream())


class StreamLane:
    """One stream: what is put is done in order, by its own thread."""

    def __init__(self, name: str, device: Device, stream: Any) -> None:
        self._device = device
        self._stream = stream
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._run), name=name, daemon=True
        )
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def drain(self) -> None:
        """Wait until all that was put is done. Raises what ended this lane."""
        self._work.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        import torch

        with torch.no_grad(), self._device.use(self._stream):
            while (work := self._work.get()) is not None:
                try:
                    if self._error is None:
                        work()
                except BaseException as error:
                    self._error = error  # No operation's: those are poison. The worker ends.
                finally:
                    self._work.task_done()
        self._work.task_done()
