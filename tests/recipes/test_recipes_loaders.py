"""Which data of a task is taken, how it is dealt out, and what is refused with what to write."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from monarch_recipes.ddp import DDPConfig, num_steps_of, shape_of
from monarch_recipes.loaders import DataSource, UnfitData, dealt_sources, sources_of
from monarch_recipes.samples import Data, DealtSamples, SampleError, TooFewSamples
from monarch_recipes.streams import (
    StreamedSamples,
    check_same_stream,
    open_samples,
    share_of_stream,
)

CPU = torch.device("cpu")


@pytest.fixture
def child_signals() -> Iterator[None]:
    """torch's DataLoader takes over how this process hears of children that end."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


PAIRS = [(torch.tensor([float(number)]), number) for number in range(20)]


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Numbers, with something drawn for each."""

    def __init__(self, num: int = 20) -> None:
        self.num, self.num_given, self.epochs = num, 0, []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num):
            self.num_given += 1
            drawn = float(torch.rand(()) + random.random() + np.random.rand())
            yield torch.tensor([drawn]), number


class Kept(Stream):
    """One that goes to a place at once."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.num:
            self.at += 1
            self.num_given += 1
            yield torch.rand(1), self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def doubled(samples: list[Any]) -> Any:
    inputs, labels = zip(*samples, strict=True)
    return 2 * torch.stack(inputs), torch.tensor(labels)


def opened(
    train: Any, rank: int = 0, world_size: int = 1, *, per_rank: int = 4, **keys: Any
) -> Any:
    source, _ = sources_of((train, PAIRS))
    return open_samples(
        DDPConfig(**keys), source, size=2, per_rank=per_rank, rank=rank, world_size=world_size
    )


def labels_of(samples: Any, step: int) -> list[int]:
    return [int(one) for _, labels in samples.of(step, CPU, "rank 0") for one in labels]


def values_of(samples: Any, step: int, generation: int = 0) -> list[float]:
    found = samples.of(step, CPU, "rank 0", generation)
    return [float(one) for inputs, _ in found for one in inputs.flatten()]


def test_a_loader_of_samples_by_number_is_dealt_out_as_its_data_set() -> None:
    plain, loader = opened(PAIRS), opened(DataLoader(PAIRS, batch_size=3, shuffle=True))
    assert isinstance(loader, DealtSamples)
    assert labels_of(loader, 6) == labels_of(plain, 6)
    in_order = opened(DataLoader(PAIRS, batch_size=3))
    assert [labels_of(in_order, step) for step in (0, 4, 5)] == [
        [0, 1, 2, 3], [16, 17, 18, 19], [0, 1, 2, 3],
    ]  # fmt: skip
    with_collate = opened(DataLoader(PAIRS, batch_size=3, collate_fn=doubled))
    assert values_of(with_collate, 0) == [0.0, 2.0, 4.0, 6.0]


def test_all_ranks_together_see_each_sample_of_a_loader_once_an_epoch() -> None:
    loader = DataLoader(PAIRS, batch_size=3, shuffle=True)
    ranks = [opened(loader, rank, 2, per_rank=2) for rank in range(2)]
    seen = [one for samples in ranks for step in range(5) for one in labels_of(samples, step)]
    assert sorted(seen) == list(range(20))


def test_what_is_taken_of_a_loader_is_told() -> None:
    loader = DataLoader(PAIRS, batch_size=3, shuffle=True, collate_fn=doubled, num_workers=2)
    source, held_out = sources_of(Data(loader, PAIRS))
    assert source.workers.num == 2
    assert source.told(128) == (
        "of the train DataLoader the run takes its data set of 20 samples, collate_fn, 2 workers, "
        "shuffled; a step has global_batch_size=128 samples over all ranks, not batch_size=3"
    )
    assert held_out.told(128) == ""


def of_sampler(sampler: Any) -> Data:
    return Data(DataLoader(PAIRS, batch_size=2, sampler=sampler), PAIRS)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DataLoader(PAIRS), r"returned a DataLoader: return Data\(train, held_out\)"),
        ((PAIRS,), r"returned 1 thing: return Data\(train, held_out\)"),
        (Data(DataLoader(PAIRS, batch_size=None), PAIRS), "train DataLoader has batch_size=None"),
        (Data(DataLoader(Stream(), batch_size=None), PAIRS), "cannot be dealt out to ranks"),
        (
            Data(
                DataLoader(PAIRS, batch_sampler=BatchSampler(SequentialSampler(PAIRS), 2, False)),
                PAIRS,
            ),
            "has a batch_sampler of its own.*leave it out",
        ),
        (of_sampler(WeightedRandomSampler([1.0] * 20, 20)), r"weigh the samples in compute_loss"),
        (of_sampler(SubsetRandomSampler([1, 2])), r"Subset\(dataset, indices\) with shuffle=True"),
        (of_sampler(RandomSampler(PAIRS, replacement=True)), "RandomSampler.*shuffle=True"),
        (of_sampler([3, 2, 1]), r"own \(list\).*shuffle=True, or False"),
        (
            Data(iter(PAIRS), PAIRS),
            "list_iterator, which can be read once: give an IterableDataset",
        ),
        (Data(PAIRS, None), "held-out data is None: hold some samples back"),
        (Data(7, PAIRS), "a int, which has no __len__"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_with_what_to_write(data: Any, why: str) -> None:
    with pytest.raises(UnfitData, match=why):
        sources_of(data)


def test_a_stream_is_shared_by_all_ranks_in_any_number() -> None:
    alone = opened(Stream())
    both = [opened(Stream(), rank, 2, per_rank=2) for rank in range(2)]
    for step in (0, 1, 4, 5, 6):  # The fifth begins the next epoch.
        mine = [labels_of(samples, step) for samples in both]
        assert sorted(itertools.chain(*mine)) == sorted(labels_of(alone, step))
        assert all(len(one) == 2 for one in mine)
    assert labels_of(alone, 7) == [8, 9, 10, 11]


def test_a_stream_draws_the_same_on_all_ranks_and_takes_nothing_of_the_models_draws() -> None:
    torch.manual_seed(1)
    before = [torch.rand(()).item() for _ in range(3)]
    first = values_of(opened(Stream()), 0)
    torch.manual_seed(1)
    samples, found = opened(Stream()), []
    for step in range(3):
        found.append(torch.rand(()).item())
        values = values_of(samples, step)
        first = first if step else values
    assert found == before
    assert values_of(opened(Stream()), 0) == first
    assert values_of(opened(Stream(), data_seed=5), 0) != first


@pytest.mark.parametrize("kind", [Stream, Kept])
def test_a_stream_that_is_resumed_goes_on_as_if_it_had_not_ended(kind: type[Stream]) -> None:
    straight = opened(kind())
    expected = [values_of(straight, step) for step in range(9)]
    before = opened(kind())
    for step in range(7):
        values_of(before, step)
    state, data = before.state_at(7), kind()
    after = opened(data)
    after.go_on_at(7, state)
    assert [values_of(after, step) for step in (7, 8)] == expected[7:9]
    # The seventh step is the third of the second epoch.
    assert data.num_given == (8 if kind is Kept else 16)
    without = opened(kind())
    without.go_on_at(7, {})
    assert values_of(without, 7) == expected[7]


def test_a_resumed_stream_may_have_another_number_of_ranks() -> None:
    before = opened(Stream())
    for step in range(7):
        values_of(before, step)
    both = [opened(Stream(), rank, 2, per_rank=2) for rank in range(2)]
    for samples in both:
        samples.go_on_at(7, before.state_at(7))
    seen = sorted(one for samples in both for one in labels_of(samples, 7))
    assert seen == sorted(labels_of(before, 7))


@pytest.mark.parametrize("kind", [Stream, Kept])
def test_a_step_that_is_made_again_has_its_samples_again(kind: type[Stream]) -> None:
    data = kind()
    samples = opened(data)
    first = values_of(samples, 0)
    place, second = samples.state_dict(), values_of(samples, 1)
    assert samples.state_at(1) == place, "a copy made beside the step is of where it began"
    samples.load_state_dict(place)
    assert values_of(samples, 1) == second
    assert data.num_given == 8, "nothing was read again"
    samples.load_state_dict(place)
    assert values_of(samples, 1, generation=1) == second, "by new code, which may be of the data"
    assert data.num_given == (12 if kind is Kept else 16)
    samples.go_on_at(0, {})
    assert values_of(samples, 0) == first


def test_an_edit_of_other_code_has_a_stream_go_on_and_one_of_its_loop_has_it_begin_again() -> None:
    class Edited(Stream):
        def __iter__(self) -> Iterator[Any]:
            for number in range(self.num):
                yield torch.tensor([1.0]), number

    data = Edited()
    samples = opened(data)
    assert values_of(samples, 0, generation=1) == [1.0] * 4

    def edited(self: Edited) -> Iterator[Any]:
        for number in range(self.num):
            yield torch.tensor([2.0]), number

    assert values_of(samples, 1, generation=2) == [1.0] * 4
    Edited.__iter__ = edited  # type: ignore[method-assign]
    assert values_of(samples, 2, generation=3) == [2.0] * 4
    assert labels_of(samples, 3) == [12, 13, 14, 15]


def test_a_loop_that_an_edit_only_moves_goes_on() -> None:
    class Moved(Stream):
        pass

    source = "def __iter__(self):\n for n in range(20):\n  self.num_given += 1\n  yield {}, n"

    def moved(text: str) -> None:
        names: dict[str, Any] = {"torch": torch}
        exec(text, names)
        Moved.__iter__ = names["__iter__"]  # type: ignore[method-assign]

    moved(source.format("torch.ones(1)"))
    data = Moved()
    samples = opened(data)
    assert labels_of(samples, 0) == [0, 1, 2, 3]
    moved("\n\n\n" + source.format("torch.ones(1)"))
    assert values_of(samples, 1, generation=1) == [1.0] * 4
    assert data.num_given == 8, "nothing was read again"
    moved(source.format("torch.zeros(1)"))
    assert values_of(samples, 2, generation=2) == [0.0] * 4
    assert data.num_given == 8 + 12


def test_a_stream_that_fails_is_told_by_number_and_read_again() -> None:
    class Failing(Stream):
        fails = True

        def __iter__(self) -> Iterator[Any]:
            for number in range(self.num):
                if number == 6 and self.fails:
                    raise OSError("the shard is gone")
                yield torch.tensor([1.0]), number

    data = Failing()
    samples = opened(data)
    assert labels_of(samples, 0) == [0, 1, 2, 3]
    with pytest.raises(
        SampleError, match=r"^rank 0 could not read sample 6 of epoch 0 of the stream"
    ):
        labels_of(samples, 1)
    data.fails = False
    assert labels_of(samples, 1) == [4, 5, 6, 7]


def test_a_stream_that_is_too_short_for_a_step_is_an_error() -> None:
    with pytest.raises(TooFewSamples, match="ended after 3"):
        labels_of(opened(Stream(3)), 0)


def test_ranks_that_read_different_streams_are_told_so() -> None:
    ranks = [opened(Stream(), rank, 2, per_rank=2) for rank in range(2)]
    for samples in ranks:
        samples.read(0, "rank")
    digests = [samples.digest() for samples in ranks]
    check_same_stream(digests)
    other = opened(Stream(), data_seed=3)
    other.read(0, "rank")
    with pytest.raises(UnfitData, match="have `__iter__` give the same samples on all ranks"):
        check_same_stream([*digests, other.digest()])


def test_workers_of_a_stream_read_the_same_again(child_signals: None) -> None:
    loader = DataLoader(Stream(), batch_size=3, num_workers=1)
    samples = opened(loader)
    assert isinstance(samples, StreamedSamples)
    expected = [values_of(samples, step) for step in range(3)]
    again = opened(loader)
    again.go_on_at(2, samples.state_at(2))
    assert values_of(again, 2) == expected[2]
    for one in samples, again:
        one.close()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_position_of_a_stateful_loader_is_its_own(child_signals: None) -> None:
    library = pytest.importorskip("torchdata.stateful_dataloader", reason="no torchdata")
    by_number = opened(library.StatefulDataLoader(PAIRS, batch_size=3, shuffle=True))
    assert labels_of(by_number, 6) == labels_of(opened(PAIRS), 6)
    loader = library.StatefulDataLoader(Kept(), batch_size=3, num_workers=1)
    samples = opened(loader)
    expected = [labels_of(samples, step) for step in range(3)]
    state = samples.state_at(2)
    assert state["inner"]["stream"], "what the loader says of its place"
    again = opened(library.StatefulDataLoader(Kept(), batch_size=3, num_workers=1))
    again.go_on_at(2, state)
    assert labels_of(again, 2) == expected[2]
    for one in samples, again:
        one.close()


def test_a_held_out_stream_is_shared_and_ends() -> None:
    source, _ = sources_of((Stream(7), PAIRS))
    shares = [
        share_of_stream(
            source, size=3, rank=rank, world_size=2, seed=1, device=CPU, reader="rank",
            collate=lambda: None,
        )
        for rank in range(2)
    ]  # fmt: skip
    seen = [[labels.tolist() for _, labels in share] for share in shares]
    assert seen == [[[0, 2, 4], [6]], [[1, 3, 5]]]


def test_a_stream_without_a_length_needs_the_number_of_steps() -> None:
    assert opened(Stream()).num_steps_per_epoch is None
    with pytest.raises(UnfitData, match="say num_steps"):
        num_steps_of(DDPConfig(), None)
    assert num_steps_of(DDPConfig(num_steps=7), None) == 7
    assert num_steps_of(DDPConfig(num_epochs=3), 5) == 15


def test_groups_take_loaders_and_refuse_streams() -> None:
    train, _ = dealt_sources(Data(DataLoader(PAIRS, batch_size=3), PAIRS), "fault_tolerant")
    assert isinstance(train, DataSource)
    assert not train.shuffle
    with pytest.raises(UnfitData, match="is a stream, and fault_tolerant asks for samples by"):
        dealt_sources(Data(Stream(), PAIRS), "fault_tolerant")


def test_a_run_on_loaders_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_recipes import ddp

    digits = ddp.load_data(DDPConfig())
    loader = DataLoader(digits.train, batch_size=16, shuffle=True)
    monkeypatch.setattr(ddp, "load_data", lambda config: Data(loader, digits.held_out))
    train, batch, num_steps = shape_of(DDPConfig(), 1, 2)
    assert (train.num_samples, batch.per_rank, num_steps) == (1438, 64, 264)
