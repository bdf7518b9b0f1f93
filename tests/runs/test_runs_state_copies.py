"""Copies of an actor's state, and what is only watched: both put back what was there before."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from monarch.runs.hold.hold_report import but_for
from monarch.runs.hold.state_copies import SAMPLED, Changed, keep, watch

torch = pytest.importorskip("torch")


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 2)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.num_steps = 0
        self.large = torch.zeros(300, 100)
        self.seen: list[int] = []
        self.step()

    def step(self, until: str = "end") -> None:
        self.optimizer.param_groups[0]["lr"] = random.random()
        self.num_steps += 1
        self.seen.append(self.num_steps)
        self.model(torch.rand(8, 200)).sum().backward()
        if until == "backward":
            raise ValueError("a branch")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if until == "optimizer":
            raise ValueError("late")

    def digest(self) -> float:
        states = [*self.model.state_dict().values()]
        for entries in self.optimizer.state.values():
            states += entries.values()
        return sum(float(one.double().sum()) for one in states)


def trained(steps: int) -> Trainer:
    random.seed(1)
    torch.manual_seed(1)
    trainer = Trainer()
    for _ in range(steps):
        trainer.step()
    return trainer


@pytest.mark.parametrize(
    ("take", "until"), [(keep, "backward"), (keep, "optimizer"), (watch, "backward")]
)
@pytest.mark.long
def test_a_step_that_failed_is_as_if_it_had_never_been(
    take: Callable[[object], Callable[[], object]], until: str
) -> None:
    want = trained(3).digest()
    trainer = trained(2)
    put_back = take(trainer)
    for _ in range(2):  # also when it fails once more
        with pytest.raises(ValueError, match=r"branch|late"):
            trainer.step(until)
        put_back()
        assert trainer.num_steps == 3
        assert trainer.seen == [1, 2, 3]
        assert all(one.grad is None for one in trainer.model.parameters())
    trainer.step()
    assert trainer.digest() == want


def late_step(trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="late"):
        trainer.step("optimizer")


def uncounted(trainer: Trainer) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            for parameter in trainer.model.parameters():
                parameter.data.add_(1.0)

    Own(trainer.model.parameters(), lr=1.0).step()


@pytest.mark.parametrize(
    "change",
    [
        late_step,
        uncounted,
        lambda trainer: torch.nn.init.zeros_(trainer.model[0].weight),
        lambda trainer: trainer.model[0].weight.grad.zero_(),
        lambda trainer: trainer.optimizer.state[trainer.model[0].weight]["exp_avg"].zero_(),
        lambda trainer: trainer.large.data.add_(1),
        lambda trainer: trainer.large.numpy().fill(7),
        lambda trainer: trainer.model[0].weight.data.neg_(),
        lambda trainer: trainer.optimizer.state[trainer.model[0].weight]["exp_avg"].data.add_(1),
    ],
    ids=[
        "late",
        "through data",
        "weights",
        "gradients",
        "optimizer",
        "data of a large one",
        "numpy of a large one",
        "data of weights",
        "data of the optimizer",
    ],
)
def test_what_was_only_watched_is_not_put_back_once_it_has_changed(
    change: Callable[[Trainer], object],
) -> None:
    trainer = trained(2)
    trainer.model(torch.rand(8, 200)).sum().backward()
    put_back = watch(trainer)
    assert put_back is not None
    put_back()  # nothing has changed yet
    change(trainer)
    with pytest.raises(Changed):
        put_back()


def test_who_keeps_by_itself_is_not_watched() -> None:
    class Own:
        def __keep__(self) -> int:
            return 1

        def __restore__(self, kept: int) -> None: ...

    assert watch(Own()) is None
    assert watch(SimpleNamespace(total=1)) is not None


def test_what_was_seen_by_samples_is_not_said_to_be_as_it_was() -> None:
    """The bits of a tensor are all compared only where that is cheap beside a call."""
    actor = SimpleNamespace(weight=torch.zeros(1 << 20, requires_grad=True))
    quick, slow = watch(actor, call_seconds=0.0), watch(actor, call_seconds=60.0)
    assert quick is not None
    assert slow is not None
    assert quick() == [SAMPLED]
    assert slow() == []
    assert "are as they were" not in but_for("", [SAMPLED])
    assert "samples of them are the same" in but_for("", [SAMPLED])
    assert "samples of them are the same; not put back, or not compared: a lock" in but_for(
        "", [SAMPLED, "a lock"]
    )
    assert "are as they were; not put back, or not compared: a lock" in but_for("", ["a lock"])


def test_large_gradients_that_a_failed_call_has_not_touched_do_not_stop_a_restore() -> None:
    actor = SimpleNamespace(weight=torch.zeros(17 << 20, requires_grad=True), num_steps=0)
    actor.bias = torch.zeros(2, requires_grad=True)
    actor.weight.grad = torch.zeros_like(actor.weight)
    put_back = watch(actor)
    assert put_back is not None
    actor.num_steps = 1
    actor.bias.grad = torch.ones(2)
    put_back()
    assert actor.num_steps == 0
    assert actor.bias.grad is None
    actor.weight.grad = None
    with pytest.raises(Changed, match="gradients have changed"):
        put_back()


def test_a_large_array_is_compared_by_samples_where_calls_are_short() -> None:
    """As a data set that a module of the user's has as a global: it costs a hold nothing."""
    numpy = pytest.importorskip("numpy")
    actor = SimpleNamespace(data=numpy.arange(1 << 20).reshape(1024, 1024).T)
    put_back = watch(actor)
    assert put_back is not None
    assert put_back() == [SAMPLED]
    actor.data += 1
    with pytest.raises(Changed):
        put_back()


@pytest.mark.long
def test_tensors_of_any_size_are_sampled_within_their_memory() -> None:
    torch = pytest.importorskip("torch")
    for size in (1, 63, 64, 65, 128, 129, 150, 170, 171, 1000):
        actor = SimpleNamespace(weight=torch.nn.Parameter(torch.zeros(size)))
        put_back = watch(actor, call_seconds=0.0)
        assert put_back is not None
        put_back()
        actor.weight.data[-1 if size < 65 else size * 5 // 8 - (size < 171) * 8] = 1.0
        if size < 65:
            with pytest.raises(Changed):
                put_back()
