"""The samples that a rank sees in a step, and their way to its device."""

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
from monarch_recipes.schedule import position_of
from monarch_sync.words import some

Collate = Callable[[list[Any]], Any]


class Data(NamedTuple):
    """Two data sets, with `len(data)` and `data[index] -> (input, label)`."""

    train: Any
    held_out: Any


class SampleError(PlacedError):
    """A sample could not be read; the message says by which rank, and which, and where in the
    code."""


class TooFewSamples(MonarchError):
    """A step wants more than there are."""


class SampleOrder:
    """Deals the samples out to the ranks, in another order in each epoch unless ``shuffle`` is off.

    The samples of a rank depend on the step alone: a run that is resumed goes on in the middle of
    its epoch. All ranks together see the same samples in a step, however many share it.
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
        """This rank's samples of `step`, counted from 0 over the whole run."""
        position = position_of(step, self.num_steps_per_epoch)
        if position.epoch != self._epoch:
            self._epoch = position.epoch
            self._sampler.set_epoch(position.epoch)
            self._indices = list(self._sampler)
        start = position.step_in_epoch * self._per_rank
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
    """These samples as (inputs, labels) on the device, `size` at a time. Raises SampleError, which
    names `reader`."""
    for first in range(0, len(indices), size):
        yield on_device(device, _read(data, indices[first : first + size], collate), reader)


def num_samples_in(labels: Any) -> int:
    """How many samples a batch has: the length of the first tensor of its labels."""
    leaves = (leaf for leaf in tree_leaves(labels) if isinstance(leaf, torch.Tensor))
    return len(next(leaves))


class ReadingAhead:
    """The batches of one step after another, which `num_workers` processes read ahead of time.

    They read with the code and the data as these were when they were started: at the first step,
    at one that is not the next, and at one of another `generation` of the code. Random numbers that
    a data set draws depend on `place` and the step alone.
    """

    def __init__(
        self,
        data: Any,
        order: SampleOrder,
        size: int,
        *,
        num_workers: int,
        place: tuple[int, ...],
        collate: Collate | None = None,
        init: Callable[[int], None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._reading = _Reading(data, collate)
        self._order, self._size, self._place = order, size, place
        # `init` runs in each worker; `options` are others of a DataLoader's.
        self._init, self._options = init, {"num_workers": num_workers, **(options or {})}
        self._next: int | None = None
        self._generation = 0
        self._batches: Iterator[Any] = iter(())

    def of(
        self, step: int, device: torch.device, reader: str, generation: int = 0
    ) -> Iterator[Any]:
        """Its batches on the device. Raises SampleError, which names `reader`."""
        if step != self._next or generation != self._generation:
            self._batches, self._generation = self._begin(step), generation
        self._next = None  # until all of this step were taken
        for _ in range(0, len(self._order.of(step)), self._size):
            yield on_device(device, next(self._batches), reader)
        self._next = step + 1

    def close(self) -> None:
        """End the processes."""
        self._batches, self._next = iter(()), None

    def state_dict(self) -> dict[str, Any]:
        """An empty state: a step that is made again is read again, whichever code has read ahead of
        it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()

    def _begin(self, step: int) -> Iterator[Any]:
        loader = DataLoader(
            self._reading,
            batch_sampler=self._wanted_from(step),
            collate_fn=_as_it_is,
            worker_init_fn=functools.partial(begin_worker, os.getpid(), self._init),
            **self._options,
            generator=torch.Generator(),  # so that it draws nothing from that of the model
        )
        return iter(loader)

    def _wanted_from(self, first: int) -> Iterator[_Wanted]:
        order = copy.copy(self._order)  # It is asked for other epochs than the one being read.
        for step in itertools.count(first):
            indices = order.of(step)
            for start in range(0, len(indices), self._size):
                yield _Wanted((*self._place, step, start), indices[start : start + self._size])


class DealtSamples:
    """The samples of a rank in each step, of a data set that is asked for them by their number.

    ``collate`` is called at each use, as its code may change. Workers read ahead where there are
    any.
    """

    def __init__(
        self,
        data: Any,
        order: SampleOrder,
        size: int,
        *,
        collate: Callable[[], Collate | None],
        num_workers: int = 0,
        place: tuple[int, ...] = (),
        **how: Any,
    ) -> None:
        self.order = order
        self.num_steps_per_epoch = order.num_steps_per_epoch
        self._data, self._size, self._collate = data, size, collate
        self.ahead = reading_ahead(
            data, order, size, num_workers=num_workers, place=place,
            collate=collate() if num_workers else None, **how,
        )  # fmt: skip

    def numbers_of(self, step: int) -> Sequence[int]:
        """This rank's samples of ``step``, for errors."""
        return self.order.of(step)

    def of(
        self, step: int, device: torch.device, reader: str, generation: int = 0
    ) -> Iterator[Any]:
        """Their batches on the device. Raises SampleError, which names ``reader``."""
        if self.ahead is not None:
            return self.ahead.of(step, device, reader, generation)
        indices = self.order.of(step)
        return batches(self._data, indices, self._size, device, reader, collate=self._collate())

    def state_at(self, step: int) -> dict[str, Any]:
        """Nothing: which samples a step has depends on its number alone."""
        return {}

    def close(self) -> None:
        """End the workers."""
        if self.ahead is not None:
            self.ahead.close()


def reading_ahead(
    data: Any, order: SampleOrder, size: int, *, num_workers: int, **how: Any
) -> ReadingAhead | None:
    """Returns a reader that has workers read ahead; None where no worker is wanted."""
    if not num_workers:
        return None
    return ReadingAhead(data, order, size, num_workers=num_workers, **how)


def begin_worker(parent: int, init: Callable[[int], None] | None, number: int) -> None:
    """What a reading process does first: it ends with the rank; then the task's own beginning."""
    end_with(parent)
    if init is not None:
        init(number)


@dataclass(frozen=True)
class _Wanted:
    place: tuple[int, ...]
    indices: list[int]


@dataclass(frozen=True)
class _Unread:
    """Takes the place of a batch that could not be read: an exception would come with the traceback
    of torch's own loop."""

    why: str
    place: tuple[str, int]


class _Reading:
    """A data set, as DataLoader asks for a whole batch of it."""

    def __init__(self, data: Any, collate: Collate | None) -> None:
        self._data, self._collate = data, collate

    def __getitems__(self, wanted: _Wanted) -> Any:
        draw_from(*wanted.place)
        return _read(self._data, wanted.indices, self._collate)


def _as_it_is(batch: Any) -> Any:
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
    """The samples of these numbers as a batch; what `on_device` raises an error of, if they make
    none."""
    try:
        return (collate or default_collate)(samples)
    except Exception as error:
        which = some([str(index) for index in indices], 8)
        why = f"could not make a batch of samples {which}: {told_error(error)}"
        return _Unread(why, place_of(error))


def told_error(error: Exception) -> str:
    """The text of an error, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_words(error)} ({last.filename}:{last.lineno})"


def on_device(device: torch.device, batch: Any, reader: str) -> Any:
    """A batch on the device. Raises SampleError, which names ``reader``, where it is none."""
    if isinstance(batch, _Unread):
        raise SampleError(f"{reader} {batch.why}", batch.place)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise SampleError(
            f"{reader} got a {type(batch).__name__} as a batch, not (inputs, labels): "
            "have data[index] give a pair, or `collate` make one"
        )
    if all(isinstance(one, torch.Tensor) for one in batch):  # A tree's walk takes its time.
        return [one.to(device) for one in batch]
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
