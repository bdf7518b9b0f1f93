"""Chooses the samples of a rank in each step, reads them, and moves them to its device."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, DistributedSampler, default_collate

from monarch.errors import MonarchError
from monarch.runs.hold.trial import PlacedError, place_of
from monarch.runs.record.error_text import in_words
from monarch.runtime.ends.process_group import end_with
from monarch_recipes.randomness import draw_from
from monarch_sync.words import some

Collate = Callable[[list[Any]], Any]


class Data(NamedTuple):
    """The train and the held-out data set.

    Each has `len(data)` and `data[index] -> (input, label)`.
    """

    train: Any
    held_out: Any


class SampleError(PlacedError):
    """A sample could not be read. The message names the rank, the sample and the line of code."""


class TooFewSamples(MonarchError):
    """A step needs more samples than the data set has."""


class SampleOrder:
    """Divides the samples among the ranks, in a new random order each epoch if ``shuffle`` is on.

    The samples of a rank depend on the step alone, so a run can resume in the middle of an epoch.
    All ranks together see the same samples in a step, whatever the number of ranks. Raises
    TooFewSamples if the data has fewer samples than a step needs.
    """

    def __init__(
        self,
        num_samples: int,
        per_rank: int,
        rank: int,
        world_size: int,
        *,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.num_steps_per_epoch = num_samples // (per_rank * world_size)
        if not self.num_steps_per_epoch:
            raise TooFewSamples(
                f"{world_size} ranks with {per_rank} samples each want more than "
                f"the {num_samples} samples there are"
            )
        self._per_rank = per_rank
        self._sampler: DistributedSampler[int] = DistributedSampler(
            range(num_samples), world_size, rank, shuffle=shuffle, seed=seed, drop_last=True
        )
        self._epoch = -1
        self._indices: list[int] = []

    def of(self, step: int) -> list[int]:
        """Return the indices of this rank's samples in `step`, counted from 0 over the run."""
        epoch, step_in_epoch = divmod(step, self.num_steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._sampler.set_epoch(epoch)
            self._indices = list(self._sampler)
        start = step_in_epoch * self._per_rank
        return self._indices[start : start + self._per_rank]


def batches(
    data: Any,
    indices: Sequence[int],
    size: int,
    device: torch.device,
    reader: str,
    *,
    collate: Collate | None = None,
) -> Iterator[Any]:
    """Yield batches (inputs, labels) of up to `size` samples on the device, for these indices.

    Raises SampleError if a sample cannot be read; its message begins with `reader`.
    """
    for first in range(0, len(indices), size):
        yield on_device(device, _read(data, indices[first : first + size], collate), reader)


def num_samples_in(labels: Any) -> int:
    """Return the number of samples in a batch: the length of the first tensor of its labels.

    Raises StopIteration if the labels have no tensor.
    """
    leaves = (leaf for leaf in tree_leaves(labels) if isinstance(leaf, torch.Tensor))
    return len(next(leaves))


class ReadingAhead:
    """Yields the batches of one step after another, which worker processes read in advance.

    `options` are arguments of DataLoader, such as `num_workers`; `init` runs in each worker.
    Workers keep the code and the data that they were started with. New workers are started for
    another `generation` of the code, and for a step that does not follow the step read before it.
    The random numbers that a data set draws are seeded from `place` and the step.
    """

    def __init__(
        self,
        data: Any,
        order: SampleOrder,
        size: int,
        *,
        place: tuple[int, ...],
        options: Mapping[str, Any],
        collate: Collate | None = None,
        init: Callable[[int], None] | None = None,
    ) -> None:
        self._batches_of = _Batches(data, collate)
        self._order, self._size, self._place = order, size, place
        self._init, self._options = init, options
        #: The step whose batches come next; None if `_batches` is at no step's beginning.
        self._next: int | None = None
        self._generation = 0
        self._batches: Iterator[Any] = iter(())

    def of(
        self, step: int, device: torch.device, reader: str, generation: int = 0
    ) -> Iterator[Any]:
        """Yield the batches of `step` on the device.

        Raises SampleError if a sample cannot be read; its message begins with `reader`.
        """
        if step != self._next or generation != self._generation:
            self._batches, self._generation = self._begin(step), generation
        self._next = None  # until all batches of this step were taken
        for _ in range(0, len(self._order.of(step)), self._size):
            yield on_device(device, next(self._batches), reader)
        self._next = step + 1

    def close(self) -> None:
        """End the worker processes."""
        self._batches, self._next = iter(()), None

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the samples of a step depend on the step alone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()

    def _begin(self, step: int) -> Iterator[Any]:
        loader = DataLoader(
            self._batches_of,
            batch_sampler=self._requests_from(step),
            collate_fn=_unchanged,
            worker_init_fn=functools.partial(begin_worker, os.getpid(), self._init),
            **self._options,
            generator=torch.Generator(),  # so that it does not draw from torch's own
        )
        return iter(loader)

    def _requests_from(self, first: int) -> Iterator[_BatchRequest]:
        order = copy.copy(self._order)  # Workers may be an epoch ahead of `of`.
        for step in itertools.count(first):
            indices = order.of(step)
            for start in range(0, len(indices), self._size):
                yield _BatchRequest(
                    (*self._place, step, start), indices[start : start + self._size]
                )


class DealtSamples:
    """The batches of a rank in each step, from a data set that is indexed by sample number.

    ``collate`` returns the present collate function; it is called for each step. If ``options`` has
    ``num_workers``, these processes read ahead; see `ReadingAhead`.
    """

    def __init__(
        self,
        data: Any,
        order: SampleOrder,
        size: int,
        *,
        collate: Callable[[], Collate | None],
        place: tuple[int, ...],
        init: Callable[[int], None] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.num_steps_per_epoch = order.num_steps_per_epoch
        self._data, self._order, self._size, self._collate = data, order, size, collate
        self._ahead: ReadingAhead | None = None
        if options["num_workers"]:
            self._ahead = ReadingAhead(
                data, order, size, place=place, options=options, collate=collate(), init=init
            )

    def numbers_of(self, step: int) -> Sequence[int]:
        """Return the indices of this rank's samples in ``step``, for error messages."""
        return self._order.of(step)

    def of(
        self, step: int, device: torch.device, reader: str, generation: int = 0
    ) -> Iterator[Any]:
        """Return an iterator over the batches of ``step`` on the device.

        Raises SampleError if a sample cannot be read; its message begins with ``reader``.
        """
        if self._ahead is not None:
            return self._ahead.of(step, device, reader, generation)
        indices = self._order.of(step)
        return batches(self._data, indices, self._size, device, reader, collate=self._collate())

    def state_at(self, step: int) -> dict[str, Any]:
        """Return an empty state: the samples of a step depend on the step alone."""
        return {}

    def close(self) -> None:
        """End the worker processes, if any."""
        if self._ahead is not None:
            self._ahead.close()


def begin_worker(parent: int, init: Callable[[int], None] | None, number: int) -> None:
    """Let this worker process end when the process ``parent`` ends, and call ``init``, if any.

    ``init`` is the task's own function; it gets the worker's ``number``.
    """
    end_with(parent)
    if init is not None:
        init(number)


@dataclass(frozen=True)
class _BatchRequest:
    place: tuple[int, ...]  # the seed and the position, for `draw_from`
    indices: list[int]


@dataclass(frozen=True)
class _Unread:
    """The error of a batch that could not be read, returned in its place.

    If the worker raised it, torch's DataLoader would add its own traceback.
    """

    why: str
    place: tuple[str, int]


class _Batches:
    """The data set for a DataLoader: each of its items is a whole batch."""

    def __init__(self, data: Any, collate: Collate | None) -> None:
        self._data, self._collate = data, collate

    def __getitems__(self, request: _BatchRequest) -> Any:
        draw_from(*request.place)
        return _read(self._data, request.indices, self._collate)


def _unchanged(batch: Any) -> Any:
    return batch


def _read(data: Any, indices: Sequence[int], collate: Collate | None) -> Any:
    samples = []
    for index in indices:
        try:
            samples.append(data[index])
        except Exception as error:
            why = f"could not read sample {index}: {told_error(error)}"
            return _Unread(why, place_of(error))
    return batch_of(samples, indices, collate)


def batch_of(samples: list[Any], indices: Sequence[int], collate: Collate | None) -> Any:
    """Return the samples as one batch.

    If they cannot be collated, return an error that `on_device` raises. Its message has
    ``indices``, the numbers of the samples.
    """
    try:
        return (collate or default_collate)(samples)
    except Exception as error:
        names = some([str(index) for index in indices], 8)
        why = f"could not make a batch of samples {names}: {told_error(error)}"
        return _Unread(why, place_of(error))


def told_error(error: Exception) -> str:
    """Return the text of an error, and the file and line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_words(error)} ({last.filename}:{last.lineno})"


def on_device(device: torch.device, batch: Any, reader: str) -> Any:
    """Return the pair (inputs, labels) of a batch, with all tensors moved to the device.

    Raises SampleError, whose message begins with ``reader``, if the batch is an error or not a
    pair.
    """
    if isinstance(batch, _Unread):
        raise SampleError(f"{reader} {batch.why}", batch.place)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise SampleError(
            f"{reader} got a {type(batch).__name__} as a batch, not (inputs, labels): "
            "have data[index] give a pair, or `collate` make one"
        )
    if all(isinstance(part, torch.Tensor) for part in batch):  # Faster than tree_map_only.
        return [part.to(device) for part in batch]
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
