"""Accepts the data that a task returns: data sets, torch's DataLoaders, or streams.

A recipe itself divides the samples among its ranks, so that a run can resume in the middle of an
epoch with any number of ranks. From a DataLoader it takes the data set, ``collate_fn``, the workers
and whether it shuffles. Settings that it could not keep are refused; the error says what to write
instead.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from monarch.config_file import ConfigError
from monarch_recipes.samples import Data, DealtSamples, SampleOrder
from monarch_recipes.task import own_part
from monarch_sync.words import counted

_WANTED = "return Data(train, held_out), of monarch_recipes.samples"


class UnfitData(ConfigError):
    """A recipe cannot divide the task's data among its ranks; the message names an alternative."""


@dataclass(frozen=True)
class LoaderWorkers:
    """The settings of a DataLoader's worker processes."""

    num: int = 0
    init: Callable[[int], None] | None = None
    context: Any = None
    prefetch_factor: int | None = None
    timeout: float = 0.0

    def options(self) -> dict[str, Any]:
        """Return the worker options of a DataLoader, without ``worker_init_fn``."""
        if not self.num:
            return {"num_workers": 0}
        return {
            "num_workers": self.num,
            "multiprocessing_context": self.context,
            "prefetch_factor": self.prefetch_factor,
            "timeout": self.timeout,
        }


@dataclass(frozen=True)
class DataSource:
    """The train or the held-out data: a stream, which is iterated, or a data set with an index."""

    data: Any
    is_stream: bool = False
    shuffle: bool = True
    collate: Callable[[list[Any]], Any] | None = None
    workers: LoaderWorkers = LoaderWorkers()
    loader: type[Any] | None = None  # the class of the task's DataLoader, if it returned one
    batch_size: int | None = None  # of that DataLoader

    @property
    def num_samples(self) -> int | None:
        """The number of samples, or None for data without a length."""
        try:
            return len(self.data)
        except (TypeError, NotImplementedError):
            return None

    def first_sample(self) -> Any:
        """Return the first sample, for a plan of the training."""
        return next(iter(self.data)) if self.is_stream else self.data[0]

    def collate_now(self, task: str | None) -> Callable[[list[Any]], Any] | None:
        """Return the task's present ``collate`` function, else the DataLoader's, else None."""
        return own_part(task, "collate") or self.collate

    def workers_for(self, config: Any) -> LoaderWorkers:
        """Return the DataLoader's worker settings, with ``config.num_workers`` if that is not 0."""
        num = config.num_workers or self.workers.num
        return dataclasses.replace(self.workers, num=num)

    def told(self, global_batch_size: int) -> str:
        """Return a text that says which settings of a DataLoader the run uses; else ""."""
        if self.loader is None:
            return ""
        num = self.num_samples
        taken = [f"its data set of {num:,} samples" if num is not None else "its stream of samples"]
        if self.collate is not None:
            taken.append("collate_fn")
        if self.workers.num:
            taken.append(counted(self.workers.num, "worker"))
        text = f"of the train {self.loader.__name__} the run takes {', '.join(taken)}"
        if not self.is_stream:
            text += ", shuffled" if self.shuffle else ", in its order"
        if self.batch_size != global_batch_size:
            text += (
                f"; a step has global_batch_size={global_batch_size} samples over all ranks, not "
                f"batch_size={self.batch_size}"
            )
        return text


def sources_of(data: Any) -> tuple[DataSource, DataSource]:
    """Return the train and the held-out source from the return value of ``load_data``.

    Raises UnfitData if it is not a pair of data sets, DataLoaders or streams that can be divided.
    """
    if not isinstance(data, (tuple, list)):
        raise UnfitData(
            f"load_data returned a {_kind(data)}: {_WANTED}; each may be a data set or a DataLoader"
        )
    if len(data) != len(Data._fields):
        raise UnfitData(f"load_data returned {counted(len(data), 'thing')}: {_WANTED}")
    train, held_out = map(_source, data, Data._fields)
    return train, held_out


def dealt_samples(
    config: Any, source: DataSource, *, size: int, per_rank: int, rank: int, world_size: int
) -> DealtSamples:
    """Return a rank's share of a data set with an index: `per_rank` samples a step, in batches of
    `size`.

    From ``config`` it reads the seeds, the task and ``num_workers``.
    """
    order = SampleOrder(
        len(source.data), per_rank, rank, world_size, seed=config.data_seed, shuffle=source.shuffle
    )
    workers = source.workers_for(config)
    return DealtSamples(
        source.data,
        order,
        size,
        collate=functools.partial(source.collate_now, config.task),
        place=(config.seed, rank),
        init=workers.init,
        options=workers.options(),
    )


def dealt_sources(data: Any, recipe: str) -> tuple[DataSource, DataSource]:
    """Return the same as `sources_of`, for a recipe that cannot use streams.

    Raises UnfitData if one of them is a stream.
    """
    sources = sources_of(data)
    for source, name in zip(sources, Data._fields, strict=True):
        if source.is_stream:
            raise UnfitData(
                f"{_called(source.data, name)} is a stream, and {recipe} asks for samples by their "
                "number, as groups come and go: give a data set with `len(data)` and "
                "`data[index]`, or train with ddp, which takes streams"
            )
    return sources


def _source(data: Any, name: str) -> DataSource:
    if isinstance(data, DataLoader):
        return _of_loader(data, name)
    if _is_stream(data):
        return DataSource(data, is_stream=True, shuffle=False)
    called = _called(data, name)
    if data is None:
        raise UnfitData(
            f"{called} is None: hold some samples back, as by torch.utils.data.random_split; the "
            "run is judged by them"
        )
    if isinstance(data, Iterator):
        raise UnfitData(
            f"{called} is a {_kind(data)}, which can be read once: give an IterableDataset, whose "
            "__iter__ begins again in each epoch"
        )
    lacking = [name for name in ("__len__", "__getitem__") if not hasattr(type(data), name)]
    if lacking:
        raise UnfitData(
            f"{called} is a {_kind(data)}, which has no {lacking[0]}: give a data set with "
            "`len(data)` and `data[index]`, an IterableDataset, or a DataLoader of one"
        )
    return DataSource(data)


def _of_loader(loader: Any, name: str) -> DataSource:
    data = loader.dataset
    is_stream = _is_stream(data)
    called = _called(loader, name)
    if loader.batch_size is None and loader.batch_sampler is None:
        raise UnfitData(
            f"{called} has batch_size=None, so its data set gives whole batches, which cannot be "
            "dealt out to ranks: give a data set of samples; `global_batch_size` makes batches"
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    workers = LoaderWorkers(
        loader.num_workers,
        loader.worker_init_fn,
        loader.multiprocessing_context,
        loader.prefetch_factor,
        loader.timeout,
    )
    shuffle = False if is_stream else _shuffles(loader, called)
    inner = _source(data, name)
    return dataclasses.replace(
        inner,
        shuffle=shuffle,
        collate=collate,
        workers=workers,
        loader=type(loader),
        batch_size=loader.batch_size,
    )


def _shuffles(loader: Any, called: str) -> bool:
    """Return whether a DataLoader shuffles. Raises UnfitData if its sampler has another order."""
    sampler = loader.sampler
    if loader.batch_size is None:
        raise UnfitData(
            f"{called} has a batch_sampler of its own ({_kind(loader.batch_sampler)}), whose "
            "batches cannot be dealt out to any number of ranks: leave it out; "
            "`global_batch_size` and shuffle make batches, collate_fn pads them"
        )
    if type(sampler) is SequentialSampler:
        return False
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    # StatefulDataLoader has a RandomSampler of its own.
    if _kind(sampler) == RandomSampler.__name__:
        if not sampler.replacement and sampler.num_samples == len(loader.dataset):
            return True
        instead = "say shuffle=True, and `num_steps` if an epoch is too long"
    elif isinstance(sampler, SubsetRandomSampler):
        instead = "give torch.utils.data.Subset(dataset, indices) with shuffle=True"
    elif isinstance(sampler, WeightedRandomSampler):
        instead = "weigh the samples in compute_loss, by (sum, weight), with shuffle=True"
    else:
        instead = "say shuffle=True, or False for the order of the data set"
    raise UnfitData(
        f"{called} has a sampler of its own ({_kind(sampler)}), whose order cannot be dealt out "
        f"so that each sample is seen once an epoch: {instead}"
    )


def _is_stream(data: Any) -> bool:
    if isinstance(data, IterableDataset):
        return True
    kind = type(data)
    is_iterable = hasattr(kind, "__iter__") and not isinstance(data, Iterator)
    return is_iterable and not hasattr(kind, "__getitem__")


def _called(data: Any, name: str) -> str:
    kind = "DataLoader" if isinstance(data, DataLoader) else "data"
    return f"load_data's {name.replace('_', '-')} {kind}"


def _kind(value: Any) -> str:
    return type(value).__name__
