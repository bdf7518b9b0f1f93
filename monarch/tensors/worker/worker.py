"""The actors in every proc of a mesh with distributed tensors."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

from monarch.actor import Actor, current_rank, endpoint
from monarch.tensors.worker import slots
from monarch.tensors.worker.current import set_current
from monarch.tensors.worker.definitions import WorkerDefinitions
from monarch.tensors.worker.executor import Executor
from monarch.tensors.worker.groups import ProcessGroups
from monarch.tensors.worker.lanes import Cuda, Device
from monarch.tensors.worker.packing import packed
from monarch.tensors.worker.slots import Poison

_NOT_A_WORKER = -1
# A context variable: the threads of streams run in copies of the worker's context.
_held: ContextVar[int | None] = ContextVar("device of the worker", default=_NOT_A_WORKER)


class TensorWorker(Actor):
    """Runs the controller's operations in order. Only the controller calls its endpoints."""

    def __init__(self, world: int, num_here: int) -> None:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_here))
        rank = current_rank().rank
        self._rank = rank
        self._groups = ProcessGroups(rank, world)
        device = Device()
        #: The GPU that this worker uses; ``None`` on a machine without GPUs.
        self._own_device: int | None = None
        watch_set_device()
        if torch.cuda.is_available():
            self._own_device = rank % num_here % torch.cuda.device_count()
            torch.cuda.set_device(self._own_device)
            device = Cuda(torch.cuda)
        self._definitions = WorkerDefinitions(rank, world, self._groups, device)
        self._executor = Executor(rank, self._definitions, device)
        set_current(rank, self._definitions, self._groups)

    @endpoint
    def run(self, batch: int, settled: int, data: bytes) -> None:
        with torch.no_grad(), staying_on(self._own_device):
            self._executor.run(batch, settled, data)

    @endpoint
    def fetch(self, ranks: tuple[int, ...], refs: list[int]) -> tuple[Any, Any]:
        """Return the failures of this worker so far, and the values of ``refs``.

        On ranks that are not in ``ranks`` the second result is ``None``.
        """
        failures = self._executor.failures()
        if self._rank not in ranks:
            return failures, None
        values = self._executor.values
        return failures, [_to_cpu(values.get(ref)) for ref in refs]

    @endpoint
    def listen(self, is_one_machine: bool) -> tuple[str, int]:
        return self._groups.listen(is_one_machine)

    @endpoint
    def num_values(self) -> tuple[int, int]:
        """Return how many values, and how many operations, this worker keeps."""
        self._executor.drain()
        return len(self._executor.values), len(self._definitions.operations)

    def __quiesce__(self) -> None:
        # New code comes between two operations in every stream, not only in the main one.
        self._executor.come_to_rest()

    def __cleanup__(self, error: Exception | None) -> None:
        self._executor.close()
        self._groups.close()


class HandOverDesk(Actor):
    """An actor beside the worker, which is never busy.

    It fills the slots of actor calls that may never run in this proc.
    """

    @endpoint
    def give_up(self, tickets: list[int], value: Any) -> None:
        """Put ``value`` into the slots ``tickets``, unless they are filled already."""
        for ticket in tickets:
            slots.put(ticket, value)


def _to_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None if type(value) is Poison else value
    return packed(value.detach().cpu())


@contextlib.contextmanager
def staying_on(device: int | None) -> Iterator[None]:
    """During the block, have ``torch.cuda.set_device`` raise ``ValueError`` for another device.

    ``None`` is a worker without a device. Torch's current device belongs to the thread, which runs
    later operations too: a remote function that chose another device would move all of them. Other
    threads of the process are not affected.
    """
    token = _held.set(device)
    try:
        yield
    finally:
        _held.reset(token)


def watch_set_device() -> None:
    """Make ``torch.cuda.set_device`` of this process check ``staying_on``, once."""
    chosen = torch.cuda.set_device
    if hasattr(chosen, "asks_worker"):
        return

    @functools.wraps(chosen)
    def set_device(device: Any) -> None:
        own = _held.get()
        if own != _NOT_A_WORKER and _index(device) != own:
            which = "no devices" if own is None else f"only devices [{own}]"
            raise ValueError(
                f"torch.cuda.set_device({device!r}) in a remote function: {which} are available to "
                "monarch worker in this proc, whose later operations would move with it. Leave the "
                "device as it is; `with torch.cuda.device(...)` changes it for a block"
            )
        chosen(device)

    set_device.asks_worker = True  # type: ignore[attr-defined]
    torch.cuda.set_device = set_device


def _index(device: Any) -> Any:
    return device if isinstance(device, int) else torch.device(device).index
