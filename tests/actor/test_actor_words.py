"""What calls that cannot be made say: what is wrong, with which endpoint, and what fits."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from monarch.actor import Actor, Port, endpoint, this_host
from monarch.actor.spawning import SpawnPlan
from monarch.mesh import Shape, Slice
from monarch_sync import SyncReport


class Trainer(Actor):
    def __init__(self, size: int = 1) -> None: ...

    @endpoint
    def step(self, batch: list[int], *, learning_rate: float = 0.1) -> float:
        return learning_rate

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int], value: int) -> None: ...

    def helper(self) -> None: ...


@pytest.fixture
def trainer() -> Any:
    return this_host().spawn_procs().spawn("trainer", Trainer)


def test_arguments_that_do_not_fit(trainer: Any) -> None:
    with pytest.raises(TypeError) as missing:
        trainer.step.call_one()
    assert str(missing.value) == (
        "trainer.step: missing a required argument: 'batch'; it takes "
        "(batch: 'list[int]', *, learning_rate: 'float' = 0.1)"
    )
    with pytest.raises(TypeError, match=r"'learningrate' \(did you mean 'learning_rate'\?\)"):
        trainer.step.call_one([1], learningrate=1.0)
    with pytest.raises(TypeError, match=r"trainer\.later: .*; it takes \(value: 'int'\)"):
        trainer.later.call_one()
    with pytest.raises(TypeError, match=r"Trainer\(\): .*did you mean 'size'.*takes \(size"):
        this_host().spawn_procs().spawn("trainer", Trainer, sizes=1)


def test_a_name_that_is_no_endpoint(trainer: Any) -> None:
    with pytest.raises(AttributeError, match=r"no endpoint 'stepp'; did you mean 'step'\?"):
        trainer.stepp.call_one([1])
    with pytest.raises(AttributeError, match="It has later, step"):
        trainer.nothing_like_it.call_one()


@pytest.mark.parametrize("adverb", ["call", "call_one", "broadcast", "choose", "stream"])
def test_a_method_without_its_decorator(trainer: Any, adverb: str) -> None:
    with pytest.raises(AttributeError, match=r"Trainer\.helper is not annotated .*add a @endpoint"):
        getattr(trainer.helper, adverb)()


def _plan(num_hosts: int, per_host: dict[str, int]) -> None:
    shape = Shape(["hosts"], Slice.new_row_major([num_hosts]))
    SpawnPlan.of(shape, per_host, None, None, None, {})


def test_a_count_for_all_hosts_where_one_for_each_is_asked() -> None:
    with pytest.warns(UserWarning, match=r"makes 128 gpus.*For 32 in all, give \{'gpus': 8\}"):
        _plan(4, {"gpus": 32})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _plan(4, {"gpus": 8})
        _plan(1, {"gpus": 32})
        _plan(4, {"procs": 32})


def test_a_refused_push_that_nobody_looks_at_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def pushed(*errors: str) -> SyncReport:
        report = SyncReport(errors=list(errors))
        report.owe()
        return report

    pushed("task.py:3: invalid syntax")
    gc.collect()
    assert "task.py:3: invalid syntax" in capsys.readouterr().err
    for look in (lambda r: r.ok, str, lambda r: r.table()):
        look(pushed("task.py:3: invalid syntax"))
    with pytest.raises(Exception, match="invalid syntax"):
        pushed("invalid syntax").raise_for_errors()
    pushed()
    gc.collect()
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_the_table_of_a_push() -> None:
    class Printer:
        shown = ""

        def text(self, text: str) -> None:
            self.shown += text

    printer = Printer()
    report = SyncReport(errors=["no"])
    report._repr_pretty_(printer, False)
    assert printer.shown == str(report)
