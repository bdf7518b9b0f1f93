"""FSDP's modules after a step that was cut short: as they were before it, whatever had begun."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from monarch.runs.hold.sharded_modules import keep_sharded_modules  # noqa: E402
from monarch.runs.hold.state_copies import Changed, keep, watch  # noqa: E402


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Trainer:
    """A model of FSDP's; ``at`` says where a step fails."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (1,))
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8))
        for block in self.model:
            if isinstance(block, nn.Linear):
                fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.at = ""

    def step(self) -> float:
        self.optimizer.zero_grad()
        value = torch.ones(2, 8)
        hook = self.model[2].register_forward_hook(self.after_block)
        try:
            out = self.model(value)
        finally:
            hook.remove()
        out.register_hook(lambda gradient: self.fail("backward"))
        loss = out.square().sum()
        loss.backward()
        self.fail("after backward")
        self.optimizer.step()
        self.fail("after the optimizer")
        return float(loss.detach())

    def after_block(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.fail("forward")
        output.register_hook(lambda gradient: self.fail("midst"))

    def fail(self, at: str) -> None:
        if self.at == at:
            raise NameError(at)

    def parameters(self) -> list[torch.Tensor]:
        return [one.to_local().detach().clone() for one in self.model.parameters()]  # type: ignore[attr-defined]


PLACES = "forward", "backward", "midst", "after backward", "after the optimizer"


def undisturbed(num_steps: int) -> tuple[list[float], list[torch.Tensor]]:
    trainer = Trainer()
    return [trainer.step() for _ in range(num_steps)], trainer.parameters()


def failing(trainer: Trainer, at: str) -> None:
    trainer.at = at
    with pytest.raises(NameError):
        trainer.step()
    trainer.at = ""
    gc.collect()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("num_before", [0, 2], ids=["first step", "later"])
@pytest.mark.parametrize("at", PLACES)
def test_after_a_step_that_was_cut_short_all_is_as_before(at: str, num_before: int) -> None:
    losses, parameters = undisturbed(num_before + 2)
    trainer = Trainer()
    seen = [trainer.step() for _ in range(num_before)]
    put_back = keep(trainer)
    before = trainer.parameters()
    failing(trainer, at)
    assert put_back() == []
    for one, other in zip(trainer.parameters(), before, strict=True):
        assert torch.equal(one, other)
    assert all(isinstance(one, DTensor) for one in trainer.model.parameters())
    for module in trainer.model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    gathered = getattr(parameter, "_unsharded_param", None)
                    assert gathered is None or gathered.grad is None
                    sizes = [one.untyped_storage().size() for one in parameter.all_gather_outputs]
                    assert sum(sizes) == 0
    seen += [trainer.step() for _ in range(2)]
    assert seen == losses
    for one, other in zip(trainer.parameters(), parameters, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("group")
@pytest.mark.long
def test_a_watched_step_is_put_back_until_the_optimizer_has_made_one() -> None:
    losses, _ = undisturbed(4)
    trainer = Trainer()
    seen = [trainer.step(), trainer.step()]
    for at in PLACES[:3]:
        trainer.optimizer.zero_grad()
        put_back = watch(trainer)
        assert put_back is not None
        failing(trainer, at)
        put_back()
    put_back = watch(trainer)
    seen += [trainer.step(), trainer.step()]
    assert seen == losses
    assert put_back is not None
    with pytest.raises(Changed):
        put_back()


@pytest.mark.usefixtures("group")
def test_an_interruption_while_parameters_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group says by then that it is sharded, and one of its parameters is not."""
    losses, _ = undisturbed(3)
    trainer = Trainer()
    seen = [trainer.step()]
    put_back = keep(trainer)
    to_unsharded: Callable[[Any], None] = FSDPParam.to_unsharded
    calls: list[Any] = []

    def interrupted(self: Any) -> None:
        to_unsharded(self)
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FSDPParam, "to_unsharded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
    gc.collect()
    put_back()
    seen += [trainer.step(), trainer.step()]
    assert seen == losses


@pytest.mark.usefixtures("group")
def test_a_call_that_begins_in_the_midst_of_a_step_cannot_be_put_back() -> None:
    trainer = Trainer()
    trainer.step()
    hook = trainer.model[2].register_forward_hook(lambda *ignored: kept.append(keep(trainer)))
    kept: list[Any] = []
    trainer.model(torch.ones(2, 8))
    hook.remove()
    with pytest.raises(Changed, match="midst of a step"):
        kept[0]()


@pytest.mark.usefixtures("group")
def test_gradients_of_shards_are_put_back() -> None:
    trainer = Trainer()
    trainer.model(torch.ones(2, 8)).sum().backward()
    parameter = next(trainer.model.parameters())
    gradient = parameter.grad
    assert isinstance(gradient, DTensor)
    values = gradient.to_local().clone()
    put_back = keep(trainer)
    trainer.model(torch.ones(2, 8)).sum().backward()
    assert not torch.equal(gradient.to_local(), values)
    parameter.requires_grad_(False)
    parameter.grad = None
    gc.collect()
    put_back()
    assert parameter.requires_grad
    assert parameter.grad is gradient
    assert torch.equal(gradient.to_local(), values)


def test_without_fsdp_there_is_nothing_to_do() -> None:
    gc.collect()
    assert keep_sharded_modules() is None
