"""Copies weights and optimizer state into the host's memory, during a forward and a backward.

Neither of these passes changes an optimizer's tensors: so one thread copies them while the passes
run, and the optimizer's step waits for the end of the copy. Small tensors are copied before the
call, and so are all if that takes a small share of the call. A recipe gets this by its ``Holding``;
its actor only defines one method, which returns the content of a checkpoint:

    class Trainer(Actor):
        def __state__(self) -> dict[str, Any]:
            return {
                "step": self.num_steps_done,  # an int, which must be there
                "model": self.model.state_dict(),  # tensors as they are: nothing is copied here
                "optimizer": self.optimizer.state_dict(),
                "random_state": torch.get_rng_state(),
            }

A new process can then continue from the copy: ``attempt.newest_copies()`` returns its step, and
the place of each rank's copy (``monarch/runs/hold/run_memory.py``); ``CopyPlace.read`` returns the
state. With sharded weights, ``__state__`` returns each rank's own shards, as plain tensors (their
``to_local()``), and ``with_attempts`` needs ``has_shards``. Without it, the state is restored in
place after a failing step, as usual.

If new code writes into a weight in its forward pass, before that was copied, the copy is wrong. To
notice this, torch's counts of writes are compared, which miss only ``.data``, numpy and
collectives; for those, sums of all bits are compared if they are cheap, else samples.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monarch.runs.hold.copy_room import ROOM, HostRoom, look_at_room, verdict_on_room
from monarch.runs.hold.packed_state import PackedState
from monarch.runs.hold.state_memory import (
    EMPTY,
    SMALL,
    WHOLE,
    CopyInMemory,
    CopyText,
    StateMemory,
    sums_of_bits,
)

QUICK_SECONDS = 0.03
"""A copy that takes no longer is waited for before the call."""

# Or a copy that takes no longer than this share of a call: a thread beside would take as much from
# the call if all cores are busy, needs sums first, and is less exact.
_QUICK_SHARE = 0.1

# For GPU memory, as a copy in GPU memory is lost with the context if a kernel fails.
_QUICK_CUDA_SECONDS = 0.2
_FOUND_A_SECOND = 1e9  # bytes a second, of memory that is allocated for the first time

SPOILT = "the step had written into weights before they were copied"

_SUMS_SHARE = 0.04  # the share of a call that computing sums may take
_SUMMED_A_SECOND = {"cpu": 6e9, "cuda": 1e12}
_PIECE_BYTES = 16 * 2**20
_MEASURED_BYTES = 32 * 2**20

_speeds: dict[str, float] = {"cpu": 1.5e9, "cuda": 8e9}  # bytes a second, as last measured
_in_progress: weakref.WeakSet[CopyBeside] = weakref.WeakSet()
_hooks: list[object] = []


class NoRoom(MemoryError):
    """The host has no room for a copy; the text has the numbers."""


class CopyBeside:
    """A copy of ``tensors`` in progress.

    The tensors numbered in ``later`` are copied during the next call, the others at once.
    """

    def __init__(
        self,
        target: CopyInMemory,
        tensors: Sequence[Any],
        later: Sequence[int],
        *,
        is_quick: bool,
        pins: bool = True,
    ) -> None:
        self.later = later
        #: Whether the whole copy is made before the call, which then cannot spoil it.
        self.is_quick = is_quick
        self._target = target
        self._tensors = list(tensors)
        self._later = sorted(set(later))
        #: Whether to pin the memory for copies from GPUs.
        self._pins = pins
        #: Torch's counts of writes into the later tensors, from before the call.
        self._versions = {number: _version_of(self._tensors[number]) for number in later}
        self._is_cancelled = False
        #: Whether an optimizer has begun a step.
        self._has_stepped = False
        self._done = threading.Event()
        #: Why the copy has failed; set by the thread that copies.
        self._error = ""
        #: Whether the state was restored to what the copy has.
        self._is_renewed = False
        #: Events for each GPU, after the work that was queued before the call.
        self._queued: dict[Any, Any] = {}
        self._start()

    @property
    def step(self) -> int:
        return self._target.marks.step

    def _start(self) -> None:
        places = self._target.text.places
        at_once = [number for number in range(len(self._tensors)) if number not in self._versions]
        ends = (places[number].offset + places[number].num_bytes for number in at_once)
        self._target.back(max(ends, default=0))
        for number in at_once:
            self._target.tensor(number).copy_(self._tensors[number])
        self._target.mark(SMALL)
        if not _hooks:
            optim: Any = sys.modules["torch.optim.optimizer"]
            _hooks.append(optim.register_optimizer_step_pre_hook(_wait_for_copies))
        _in_progress.add(self)
        cuda = sys.modules["torch"].cuda
        for device in {self._tensors[number].device for number in self._later}:
            if device.type == "cuda":
                self._queued[device] = cuda.Event()
                self._queued[device].record(cuda.current_stream(device))
        if self.is_quick:
            self._copy_later()
            return
        threading.Thread(target=self._copy_later, name="copy-beside", daemon=True).start()

    def _copy_later(self) -> None:
        torch: Any = sys.modules["torch"]
        streams: dict[Any, Any] = {}
        try:
            self._target.back(self._target.text.num_bytes)
            if self._queued and self._pins:
                self._target.pin()
            began, began_cpu, num_bytes = time.monotonic(), time.thread_time(), 0
            for device, event in self._queued.items():
                streams[device] = torch.cuda.Stream(device)
                streams[device].wait_event(event)
            with torch.no_grad():
                for number in self._later:
                    if self._is_cancelled:
                        return
                    source, copied = self._tensors[number], self._target.tensor(number)
                    num_bytes += source.nbytes
                    if source.device in streams:
                        with torch.cuda.stream(streams[source.device]):
                            copied.copy_(source, non_blocking=True)
                    else:
                        self._copy_in_pieces(source, copied)
            for stream in streams.values():
                stream.synchronize()
            if num_bytes > _MEASURED_BYTES:
                # On a CPU, the time of this thread: the call and other ranks took their share.
                seconds = time.monotonic() - began if streams else time.thread_time() - began_cpu
                _speeds["cuda" if streams else "cpu"] = num_bytes / max(seconds, 1e-6)
            if self._has_counted_writes():
                self._error = SPOILT
            elif not self._is_cancelled:
                self._target.mark(WHOLE)
        except Exception as error:  # for example, memory is short after all, or the device is gone
            self._error = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                for stream in streams.values():
                    stream.synchronize()
            self._done.set()

    def _copy_in_pieces(self, source: Any, copied: Any) -> None:
        """Copy ``source`` into ``copied`` in pieces, so that the copy can be cancelled soon."""
        if source.nbytes <= _PIECE_BYTES or source.dim() == 0:
            copied.copy_(source)
            return
        rows = max(1, source.shape[0] * _PIECE_BYTES // source.nbytes)
        for piece, copied_piece in zip(source.split(rows), copied.split(rows), strict=True):
            if self._is_cancelled:
                return
            copied_piece.copy_(piece)

    def _has_counted_writes(self) -> bool:
        """Whether torch has counted a write into a tensor of ``later`` since the copy began."""
        versions = self._versions.items()
        return any(_version_of(self._tensors[number]) != version for number, version in versions)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the copy is complete, or has failed; return False if that takes longer than
        ``seconds``."""
        return self._done.wait(seconds)

    @property
    def error(self) -> str:
        """Return why the copy is invalid, after ``wait``; "" if it is valid."""
        return self._error or ("" if self._done.is_set() else "it was not finished")

    def close(self) -> None:
        """Stop the copy; after this, nothing writes into its memory."""
        self._is_cancelled = True
        _in_progress.discard(self)
        self.wait()
        self._tensors = []

    def equals_state(self) -> None:
        """Record that the tensors have the values of the copy: they were restored."""
        self._versions = {number: _version_of(self._tensors[number]) for number in self.later}
        self._has_stepped, self._is_renewed = False, True

    def renew(self, held: Sequence[Any]) -> bool:
        """Make this copy serve another call, if the state was restored and has not changed since.

        ``held`` are the optimizers' current tensors. Returns whether the copy can be reused.
        """
        if not (self._is_renewed and self._done.is_set()) or self._error:
            return False
        tensors = [self._tensors[number] for number in self.later]
        if list(map(_layout, tensors)) != list(map(_layout, held)):
            return False
        return not (self._has_stepped or self._has_counted_writes()) and self._has_same_sums()

    def spoil(self) -> None:
        """Mark the copy as invalid, so that no process continues from it."""
        self.close()
        self._target.mark(EMPTY)

    def tensor(self, number: int) -> Any:
        """Return the copy of the tensor with that number, on the CPU."""
        return self._target.tensor(number)

    def has_sum(self, number: int) -> bool:
        """Whether all bits of the tensor ``number`` can be compared with the copy, not only
        samples.
        """
        return self.is_quick or str(number) in self._target.text.sums

    @property
    def is_untouched(self) -> bool:
        """Whether the tensors of ``later`` are unchanged since the copy began, as far as can be
        seen.

        They count as unchanged if no optimizer has begun a step, torch's counters show no write,
        and the sums of their bits are the same. The copy itself is not read.
        """
        if self._has_stepped or self.is_quick or self._has_counted_writes():
            return False
        return self._has_same_sums()

    def _has_same_sums(self) -> bool:
        """Whether the later tensors have the sums of bits that were computed for the copy."""
        sums = self._target.text.sums
        return sums_of_bits([self._tensors[int(n)] for n in sums]) == list(sums.values())

    def wrong(self) -> str:
        """Return why the state cannot be restored from the copy; "" if it can."""
        self.wait()
        if self.error or self.is_quick or self._is_renewed:
            return self.error
        sums = self._target.text.sums
        copied = [self._target.tensor(int(number)) for number in sums]
        return "" if sums_of_bits(copied) == list(sums.values()) else SPOILT


def begin_copy(
    memory: StateMemory,
    state: Mapping[str, Any] | None,
    held: Sequence[Any],
    generation: int,
    *,
    num_ranks: int = 1,
    keeps_older: bool = False,
    call_seconds: float = 0.0,
    sums_seconds: float = 0.06,
    look: Callable[[], HostRoom] = look_at_room,
) -> CopyBeside:
    """Begin a copy of ``state`` and of the optimizers' tensors ``held``, parameters first; return
    it.

    ``num_ranks`` ranks share this host. ``keeps_older``: do not overwrite the newest complete copy.
    ``call_seconds`` is how long a call takes; computing sums may take ``sums_seconds``, or a small
    share of it. Raises ``NoRoom`` or ``OSError`` if the host has too little memory, and
    ``UnpackableState`` if no other process could get the state.
    """
    tensors, later, text = _laid_out(state, held)
    num_bytes = memory.num_new_bytes(text, keeps_older=keeps_older)
    verdict = verdict_on_room(num_bytes, num_ranks, look())
    if not verdict.fits:
        raise NoRoom(verdict.why)
    is_quick = is_quick_copy([tensors[number] for number in later], num_bytes, call_seconds)
    if not is_quick:
        seconds = max(sums_seconds, _SUMS_SHARE * call_seconds)
        sums = _sums_within(seconds, {number: tensors[number] for number in later})
        text = replace(text, sums=sums)
    step = state["step"] if state is not None else 0
    target = memory.begin(text, step, generation, keeps_older=keeps_older)
    return CopyBeside(target, tensors, later, is_quick=is_quick, pins=verdict.may_be_pinned)


def why_no_room(
    memory: StateMemory,
    state: Mapping[str, Any],
    held: Sequence[Any],
    *,
    num_ranks: int = 1,
    keeps_older: bool = False,
    look: Callable[[], HostRoom] = look_at_room,
) -> str:
    """Return why neither the host nor the GPUs have room for a copy; "" if one of them has.

    The host's room is judged as ``begin_copy`` does before it raises ``NoRoom``.
    """
    _, _, text = _laid_out(state, held)
    num_bytes = memory.num_new_bytes(text, keeps_older=keeps_older)
    verdict = verdict_on_room(num_bytes, num_ranks, look())
    return "" if verdict.fits or have_gpus_room(held) else verdict.why


def have_gpus_room(tensors: Sequence[Any]) -> bool:
    """Whether all tensors are on GPUs that have room for copies of them."""
    sizes: dict[Any, list[int]] = {}
    for tensor in tensors:
        if tensor.device.type != "cuda":
            return False
        sizes.setdefault(tensor.device, []).append(tensor.nbytes)
    cuda = sys.modules["torch"].cuda
    return bool(sizes) and all(
        cuda.mem_get_info(device)[0] >= sum(device_sizes) + (ROOM - 1) * max(device_sizes)
        for device, device_sizes in sizes.items()
    )


def _laid_out(
    state: Mapping[str, Any] | None, held: Sequence[Any]
) -> tuple[list[Any], list[int], CopyText]:
    """Return all tensors of a copy, the numbers of the optimizers' tensors, and the layout of the
    copy.
    """
    packed = PackedState.of(state)
    later = [packed.number_of(tensor) for tensor in held]
    return packed.tensors, later, CopyText(packed.text, tuple(packed.places(set(later))), {})


def is_quick_copy(tensors: Sequence[Any], num_new_bytes: int, call_seconds: float = 0.0) -> bool:
    """Whether a copy of these tensors is so fast that it can be made before the call, and not
    during the call.

    That is judged by the last measured speeds, by ``call_seconds``, the duration of the call, and
    by ``num_new_bytes`` of memory that must still be allocated.
    """
    seconds: dict[str, float] = {}
    for tensor in tensors:
        kind = tensor.device.type
        seconds[kind] = seconds.get(kind, 0.0) + tensor.nbytes / _speeds.get(kind, 1e9)
    finding = num_new_bytes / _FOUND_A_SECOND
    on_cuda = seconds.pop("cuda", 0.0)
    quick_seconds = QUICK_SECONDS + _QUICK_SHARE * call_seconds
    return finding + sum(seconds.values()) <= quick_seconds and (
        finding + on_cuda <= _QUICK_CUDA_SECONDS
    )


def _sums_within(seconds: float, tensors: Mapping[int, Any]) -> dict[str, int]:
    """Return the sum of bits of each tensor by number, for as many as ``seconds`` allow."""
    summed: dict[str, Any] = {}
    for number, tensor in tensors.items():
        seconds -= tensor.nbytes / _SUMMED_A_SECOND.get(tensor.device.type, 1e9)
        if seconds < 0:
            break
        summed[str(number)] = tensor
    return dict(zip(summed, sums_of_bits(list(summed.values())), strict=True))


def _version_of(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _layout(tensor: Any) -> Any:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _wait_for_copies(*ignored: Any) -> None:
    """Wait until all copies are complete. Optimizers call it before each step.

    It waits for all because an optimizer may have tensors of any copy.
    """
    for copy in list(_in_progress):
        copy._has_stepped = True
        copy.wait()
