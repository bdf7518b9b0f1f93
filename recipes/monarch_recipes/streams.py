"""Samples of a data set that is read from beginning to end, such as torch's IterableDataset.

Every rank reads the whole stream and keeps its share. So all ranks together see the same samples in
a step, whatever the number of ranks. The position is the epoch and the number of samples read in
it. A stream with ``state_dict`` goes straight to a position; any other is read from its beginning.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from monarch.runs.hold.trial import place_of
from monarch_recipes.loaders import DataSource, UnfitData, dealt_samples
from monarch_recipes.randomness import OwnDraws
from monarch_recipes.samples import (
    Collate,
    DealtSamples,
    SampleError,
    TooFewSamples,
    batch_of,
    begin_worker,
    on_device,
    told_error,
)

_TOLD_SECONDS = 1.0


@dataclass(frozen=True)
class StreamPlace:
    """The position in the stream at which ``step`` begins.

    ``inner`` has the state that the stream itself returned there, and that of the random
    generators; empty if the stream has no ``state_dict``.
    """

    step: int
    epoch: int = 0
    num_read: int = 0
    inner: Mapping[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values for a checkpoint."""
        return {**vars(self), "inner": dict(self.inner)}


class StreamedSamples:
    """A rank's share of a stream's samples in each step; all ranks together read ``per_step``.

    A step that is repeated gets the same samples as before; after an edit of the code they are read
    again with the new code. Raises TooFewSamples if an epoch has fewer samples than a step.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        per_step: int,
        size: int,
        rank: int,
        world_size: int,
        seed: int,
        collate: Callable[[], Collate | None] = lambda: None,
    ) -> None:
        num = source.num_samples
        self.num_steps_per_epoch = None if num is None else num // per_step
        self._opened = _OpenedStream(source, seed)
        self._per_step, self._size, self._collate = per_step, size, collate
        self._rank, self._world_size = rank, world_size
        #: The beginning of the stream; None until it is opened.
        self._start: StreamPlace | None = None
        #: The place of the first step that was not read yet.
        self._next = StreamPlace(0)
        #: The place of the step before, and this rank's samples of it with their numbers.
        self._kept = StreamPlace(-1)
        self._samples: list[Any] = []
        self._numbers: list[int] = []
        #: The generation of the code that read them.
        self._generation = 0
        # A hold saves the state of objects that have an iterator in an attribute: so this has one.
        self._moving = _moving()

    def numbers_of(self, step: int) -> Sequence[int]:
        """Return the numbers of this rank's samples within the epoch's stream.

        ``step`` must be the step that was read last.
        """
        return self._numbers

    def of(
        self, step: int, device: torch.device, reader: str, generation: int = 0
    ) -> Iterator[Any]:
        """Yield the batches of ``step`` on the device.

        Raises SampleError if a sample cannot be read; its message begins with ``reader``.
        """
        self.read(step, reader, generation)
        for first in range(0, len(self._samples), self._size):
            chosen = slice(first, first + self._size)
            batch = batch_of(self._samples[chosen], self._numbers[chosen], self._collate())
            yield on_device(device, batch, reader)

    def read(self, step: int, reader: str, generation: int = 0) -> None:
        """Read the samples of ``step`` and keep this rank's share of them.

        Raises SampleError if the stream raises an error; its message begins with ``reader``.
        """
        is_new_code, self._generation = generation != self._generation, generation
        if step == self._kept.step:
            if not is_new_code:
                return
            self._go_to(self._kept)
        elif step != self._next.step:
            self._go_to(self._start or StreamPlace(0), step)
        elif is_new_code and self._opened.has_old_code:
            self._opened.close()
        try:
            self._read_step(step)
        except SampleError as error:
            raise SampleError(f"{reader} {error}", error.place) from None
        except BaseException:
            self._opened.close()
            raise

    def digest(self) -> int:
        """Return a number computed from all samples of the first step that this process read.

        It is equal on all ranks that read the same stream.
        """
        return self._digest

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the position at which ``step`` begins.

        It must be the next step, or the one read last.
        """
        place = self._kept if step == self._kept.step else self._next
        return place.state_dict()

    def go_on_at(self, step: int, state: Mapping[str, Any]) -> None:
        """Go to ``step``.

        If ``state`` is not a position of that step, read the stream up to there.
        """
        if state.get("step") == step:
            self._go_to(StreamPlace(**state))
        else:
            self._go_to(self._start or StreamPlace(0), step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the first step that was not read yet, for a hold of the run."""
        return self._next.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the position ``state``.

        Does nothing if this object is there already: at the step read last, or at the one after it.
        """
        place = StreamPlace(**state)
        if place.step not in (self._kept.step, self._next.step):
            self._go_to(place)

    def close(self) -> None:
        """End the workers."""
        self._opened.close()

    def _go_to(self, place: StreamPlace, step: int | None = None) -> None:
        """Go to ``place``, then read on to the beginning of ``step``, if it is given."""
        self._opened.close()
        self._next, self._kept, self._samples, self._numbers = place, StreamPlace(-1), [], []
        while step is not None and self._next.step < step:
            self._read_step(self._next.step, is_kept=False)
        self._kept = StreamPlace(-1)

    def _read_step(self, step: int, *, is_kept: bool = True) -> None:
        epoch, num_read = self._next.epoch, self._next.num_read
        while True:
            place = StreamPlace(step, epoch, num_read, self._at(epoch, num_read))
            samples, self._digest = [], 0
            for number, sample in enumerate(self._opened.take(self._per_step), num_read):
                if is_kept and number % self._world_size == self._rank:
                    samples.append((number, sample))
                if is_kept and self._kept.step < 0:  # The first step that is read.
                    self._digest = _digest(sample, self._digest)
            num_taken = self._opened.num_read - num_read
            if num_taken == self._per_step:
                break
            if not num_read:
                raise TooFewSamples(
                    f"a step takes {self._per_step} samples over all ranks, and the stream of the "
                    f"train data ended after {num_taken}"
                )
            epoch, num_read = epoch + 1, 0
        self._kept = place
        self._next = StreamPlace(step + 1, epoch, num_read + self._per_step, self._opened.inner())
        if is_kept:
            self._numbers = [number for number, _ in samples]
            self._samples = [sample for _, sample in samples]

    def _at(self, epoch: int, num_read: int) -> Mapping[str, Any]:
        """Open the stream at a position, and return the stream's own state there.

        Returns {} if it has none.
        """
        opened, is_next = self._opened, (epoch, num_read) == (self._next.epoch, self._next.num_read)
        if (opened.epoch, opened.num_read) != (epoch, num_read):
            opened.open(epoch, num_read, self._next.inner if is_next else {}, tells=self._rank == 0)
        inner = opened.inner()
        if self._start is None:
            self._start = StreamPlace(0, inner=inner)
        return inner


def share_of_stream(
    source: DataSource,
    *,
    size: int,
    rank: int,
    world_size: int,
    seed: int,
    device: torch.device,
    reader: str,
    collate: Callable[[], Collate | None],
) -> Iterator[Any]:
    """Yield a rank's batches of the whole stream on the device, for example for an evaluation.

    Raises SampleError if a sample cannot be read; its message begins with ``reader``.
    """
    opened = _OpenedStream(source, seed)
    opened.open(0, 0, {}, tells=False)
    try:
        while True:
            try:
                samples = opened.take(size * world_size)
            except SampleError as error:
                raise SampleError(f"{reader} {error}", error.place) from None
            if not samples:
                return
            first = opened.num_read - len(samples)
            numbers = range(first, opened.num_read)[rank::world_size]
            if numbers:
                batch = batch_of(samples[rank::world_size], numbers, collate())
                yield on_device(device, batch, reader)
    finally:
        opened.close()


class _OpenedStream:
    """An iterator over one epoch of a stream.

    The random numbers that the stream draws depend only on the seed, the epoch and the position.
    """

    def __init__(self, source: DataSource, seed: int) -> None:
        self._source, self._seed = source, seed
        self.epoch, self.num_read = -1, -1
        self._iterator: Any = None
        self._loader: Any = None
        self._draws = OwnDraws()
        self._code: Any = None

    @property
    def has_old_code(self) -> bool:
        """Whether code from before the last edit may read the stream. False if it is not open.

        Workers have the code of their start; a running ``__iter__`` has the code of its first call.
        """
        if self._iterator is None:
            return False
        return self._source.workers.num > 0 or self._code != _code_of(self._source.data)

    def open(self, epoch: int, num_read: int, inner: Mapping[str, Any], *, tells: bool) -> None:
        """Begin the epoch and go to the position after ``num_read`` samples.

        ``inner`` is the stream's own state at that position. If it is empty, the samples before the
        position are read and dropped. With ``tells`` a line is printed if reading takes more than a
        second.
        """
        self.close()
        data = self._source.data
        self._draws = OwnDraws(self._seed, epoch)
        with self._draws:
            if hasattr(data, "set_epoch"):
                data.set_epoch(epoch)
            if self._source.workers.num:
                self._loader = self._make_loader(epoch)
                if inner:
                    self._loader.load_state_dict(inner["stream"])
                self._iterator = iter(self._loader)
            else:
                self._iterator = iter(data)
                if inner and _keeps_place(type(self._iterator)):
                    self._iterator.load_state_dict(inner["stream"])
                elif inner:
                    data.load_state_dict(inner["stream"])
                    self._iterator = iter(data)
        self._code = _code_of(data)
        self.epoch, self.num_read = epoch, 0
        if inner:
            self._draws.load_state_dict(inner["draws"])
            self.num_read = num_read
            return
        began, is_told = time.monotonic(), not tells
        while self.num_read < num_read and self.take(min(num_read - self.num_read, 256)):
            if not is_told and time.monotonic() - began > _TOLD_SECONDS:
                is_told = True
                sys.stdout.write(
                    f"reading {num_read:,} samples of the stream again, to go to where it was; a "
                    "data set with `state_dict` and `load_state_dict` goes there at once\n"
                )
                sys.stdout.flush()
        self.num_read = num_read  # If the stream is shorter now, it is at its end.

    def take(self, num: int) -> list[Any]:
        """Return the next ``num`` samples, or fewer at the end of the epoch.

        Raises SampleError if the stream raises an error.
        """
        samples: list[Any] = []
        with self._draws:
            try:
                for _ in range(num):
                    samples.append(next(self._iterator))
            except StopIteration:
                pass
            except Exception as error:
                number = self.num_read + len(samples)
                why = f"could not read sample {number} of epoch {self.epoch} of the stream"
                text, place = told_error(error), place_of(error)
                self.close()
                raise SampleError(f"{why}: {text}", place) from None
        self.num_read += len(samples)
        return samples

    def inner(self) -> Mapping[str, Any]:
        """Return the stream's own state and that of its random generators.

        Returns {} without a ``state_dict``.
        """
        if self._loader is not None:
            if not hasattr(self._loader, "state_dict"):
                return {}
            state = self._loader.state_dict()
        else:
            keeper = self._iterator
            if not _keeps_place(type(keeper)):
                keeper = self._source.data
            if not _keeps_place(type(keeper)):
                return {}
            state = keeper.state_dict()
        # The stream may change the returned objects later.
        return {"stream": copy.deepcopy(state), "draws": self._draws.state_dict()}

    def close(self) -> None:
        """End the workers, if any, and forget the position."""
        self._iterator = self._loader = None
        self.epoch = self.num_read = -1

    def _make_loader(self, epoch: int) -> Any:
        loader_class, workers = self._source.loader or DataLoader, self._source.workers
        return loader_class(
            self._source.data,
            batch_size=None,
            worker_init_fn=functools.partial(begin_worker, os.getpid(), workers.init),
            generator=torch.Generator().manual_seed(_seed_of(self._seed, epoch)),
            **workers.options(),
        )


def _code_of(data: Any) -> Any:
    return _text_of(getattr(type(data).__iter__, "__code__", None))


def _text_of(code: Any) -> Any:
    """Return what a code object does, without its line numbers: an edit above it moves these."""
    if not isinstance(code, types.CodeType):
        return repr(code)  # A number, a text: 1 and True are not the same.
    constants = tuple(map(_text_of, code.co_consts))
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _keeps_place(kind: type) -> bool:
    return hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")


def _seed_of(seed: int, epoch: int) -> int:
    return zlib.crc32(repr((seed, epoch)).encode())


def _digest(sample: Any, digest: int) -> int:
    """Return ``digest``, which is that of all earlier samples, extended by ``sample``."""
    for leaf in tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            data = leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        elif isinstance(leaf, np.ndarray):
            data = leaf.tobytes()
        elif isinstance(leaf, (bytes, str, int, float, bool)):
            data = repr(leaf).encode()
        else:
            data = type(leaf).__name__.encode()
        digest = zlib.crc32(data, digest)
    return digest


def _moving() -> Iterator[None]:
    yield None


def open_samples(
    config: Any, source: DataSource, *, size: int, per_rank: int, rank: int, world_size: int
) -> DealtSamples | StreamedSamples:
    """Return a rank's share of the train data: `per_rank` samples a step, `size` in a batch.

    From ``config`` it reads the seeds, the task and ``num_workers``.
    """
    if not source.is_stream:
        return dealt_samples(
            config, source, size=size, per_rank=per_rank, rank=rank, world_size=world_size
        )
    return StreamedSamples(
        dataclasses.replace(source, workers=source.workers_for(config)),
        per_step=per_rank * world_size,
        size=size,
        rank=rank,
        world_size=world_size,
        seed=config.data_seed,
        collate=functools.partial(source.collate_now, config.task),
    )


def check_same_stream(digests: Sequence[int]) -> None:
    """Raise UnfitData if ranks read different samples in their first step.

    ``digests`` are by rank.
    """
    if len(set(digests)) > 1:
        raise UnfitData(
            "ranks read different samples from the stream of the train data, and each keeps its "
            "share of what it reads: have `__iter__` give the same samples on all ranks, without a "
            "look at the rank, and draw at random from torch, random or numpy as they are, which "
            "the recipe seeds"
        )
