"""A plain script: how it is told from a recipe, what its failure says, and how it is driven."""

from __future__ import annotations

import ast
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import monarch
from monarch.errors import ActorError
from monarch.runs.hold.holding import Holding
from monarch.runs.hold.trial import TrialReport
from monarch.runs.recipe.plain_script import ScriptFailed
from monarch.runs.recipe.script_ranks import ScriptEnd, ended_words
from monarch.runs.recipe.script_source import calls_step, is_plain
from monarch.runs.record.error_lines import ErrorLines, error_in, lines_of
from monarch.runs.recover.ranks import RunFailed
from monarch.spmd import steps
from monarch.spmd.steps import ScriptThread

_GUARD = 'if __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"def main(): ...\n{_GUARD}", True),
        ("for step in range(3):\n    print(step)\n", True),
        ("import torch\ntorch.manual_seed(0)\n", True),
        (f"def run(rank, world_size): ...\n{_GUARD}", True),
        (f"def run(rank, size, port): ...\n{_GUARD}", True),
        (f"from wandb import run\n{_GUARD}", True),
        ("def run(config: Config, procs, record): ...\n", False),
        (f"def run(config: Config, procs, record): ...\n{_GUARD}", False),
        ("from .recipe import run\n", False),
        ("def run(config): ...\n", False),
        ('"""Definitions alone."""\nclass Model: ...\n', False),
    ],
)
def test_a_file_without_a_recipe_in_it_is_a_plain_script(source: str, expected: bool) -> None:
    assert is_plain(ast.parse(source)) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import monarch\nmonarch.step()\n", True),
        ("from monarch import step\nstep()\n", True),
        ("from trainer import train\n", True),
        ("import pack.loop\n", True),
        ("import monarch\noptimizer.step()\n", False),
        ("import os\n", False),
    ],
)
def test_whether_a_script_calls_step(source: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "trainer.py").write_text("from pack import loop\n")
    (tmp_path / "pack/__init__.py").write_text("")
    (tmp_path / "pack/loop.py").write_text("import monarch\n\n\ndef f():\n    monarch.step()\n")
    script = tmp_path / "train.py"
    script.write_text(source)
    assert calls_step(script) is expected


_PRINTED = """\
a warning
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 9, in <module>
[rank1]:     main()
[rank1]:   File "/home/me/train.py", line 5, in main
[rank1]:     torch.zeros(2) @ torch.zeros(3)
[rank1]:   File "/usr/lib/python3/site-packages/torch/x.py", line 3, in matmul
[rank1]:     raise RuntimeError
[rank1]: RuntimeError: sizes do not fit
[rank1]: and a second line
"""


def test_the_error_that_a_process_printed_is_two_lines() -> None:
    lines = error_in(_PRINTED)
    assert lines is not None
    assert (lines.error, lines.file, lines.line) == (
        "RuntimeError: sizes do not fit", "/home/me/train.py", 5
    )  # fmt: skip
    assert str(ScriptFailed("train.py", ScriptEnd(1, 1, lines))) == (
        "train.py failed: RuntimeError: sizes do not fit\n/home/me/train.py:5, on rank 1"
    )
    assert lines.traceback.startswith("Traceback")
    assert lines.traceback.endswith("sizes do not fit")


def test_an_error_that_ends_a_run_is_two_lines_with_all_else_that_was_said() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/home/me/task.py", line 3, in f\nKeyError: 1'
    )
    plain = lines_of(RunFailed(f"KeyError: 1\n{trace}"))
    assert plain is not None
    assert plain.told() == "KeyError: 1\n/home/me/task.py:3"
    held = lines_of(RunFailed(f"step 3 failed: KeyError: 1\ntask.py:3\nRoll back.\n{trace}"))
    assert held is not None
    assert held.told() == "step 3 failed: KeyError: 1\ntask.py:3\nRoll back."
    assert held.traceback == trace
    assert lines_of(RunFailed("there is no room")) is None
    raised = lines_of(ActorError(KeyError(1), "failed", trace, 2))
    assert raised is not None
    assert raised.told() == "KeyError: 1\n/home/me/task.py:3, on rank 2"


def test_errors_without_a_traceback() -> None:
    syntax = (
        '  File "/home/me/train.py", line 3\n    def f(\n         ^\nSyntaxError: never closed\n'
    )
    lines = error_in(syntax)
    assert lines is not None
    assert (lines.error, lines.file, lines.line) == (
        "SyntaxError: never closed", "/home/me/train.py", 3
    )  # fmt: skip
    assert error_in("only a warning\n") is None
    assert ended_words(-11) == "was ended by SIGSEGV"
    assert ended_words(3) == "exited with status 3"
    end = ScriptEnd(0, -9, ErrorLines(ended_words(-9)))
    assert str(ScriptFailed("train.py", end)) == (
        "train.py failed: was ended by SIGKILL\non rank 0"
    )


def test_a_script_stops_at_each_step_until_it_may_go_on() -> None:
    done: list[object] = []

    def main() -> None:
        for number in range(2):
            done.append(number)
            monarch.step(loss=number)
        done.append(monarch.step(lambda x: x + 1, 41))

    script = ScriptThread(main)
    assert script.go_on()
    assert done == [0]
    assert script.go_on()
    assert (done, script.figures, script.num_steps) == ([0, 1], {"loss": 1.0}, 1)
    assert script.go_on()
    script.make_step()
    assert not script.go_on()
    assert done == [0, 1, 42]
    assert not script.go_on(), "it has ended"


def test_a_step_that_raises_is_made_again_in_the_scripts_own_thread() -> None:
    threads, got = set(), []
    fails = [True]

    def train_step(x: int) -> int:
        threads.add(threading.get_ident())
        if fails[0]:
            raise ValueError("bad")
        return x

    script = ScriptThread(lambda: got.append(monarch.step(train_step, 7)))
    script.go_on()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            script.make_step()
    assert got == [], "the script's own frames wait"
    fails[0] = False
    script.make_step()
    assert not script.go_on()
    assert got == [7]
    assert threads == {script.ident}


@pytest.mark.parametrize(
    ("result", "is_due", "figures"),
    [
        (0.5, True, {"loss": 0.5}),
        (torch.tensor([0.5], requires_grad=True), False, {"loss": 0.5}),
        (torch.tensor([0.5, 1.0]), True, {}),
        (torch.empty((), device="meta"), True, {}),
        ({"loss": 2, "right": torch.tensor(3), "logits": torch.zeros(4), 5: 1.0, "ok": True}, True,
         {"loss": 2.0, "right": 3.0}),
        ((1.0, 2.0), True, {}), (None, True, {}), ("text", True, {}), (True, True, {}),
    ],
)  # fmt: skip
def test_numbers_that_a_step_returns_are_figures_of_the_run(
    result: object, is_due: bool, figures: dict[str, float]
) -> None:
    script = ScriptThread(lambda: monarch.step(lambda: result))
    script.go_on()
    assert script.make_step() == figures
    assert not script.go_on()
    assert steps._figures_of(result, is_due=is_due) == figures


def test_a_number_on_a_gpu_is_waited_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_is_on_gpu", lambda value: True)
    assert steps._figures_of(torch.tensor(1.0), is_due=False) == {}
    assert steps._figures_of(torch.tensor(1.0), is_due=True) == {"loss": 1.0}


def test_outside_of_a_run_a_step_is_a_plain_call() -> None:
    assert monarch.step() is None
    assert monarch.step(max, 1, 2) == 2
    with pytest.raises(TypeError, match=r"the first argument is the function to call"):
        monarch.step(0.3)  # type: ignore[arg-type]


def test_what_a_script_raises_reaches_its_driver() -> None:
    script = ScriptThread(lambda: exec(textwrap.dedent("raise KeyError('gone')")))
    with pytest.raises(KeyError, match="gone"):
        script.go_on()
    assert script.is_ended


@pytest.mark.parametrize("late", [TrialReport(0, "go_on"), TrialReport(0, "step", is_running=True)])
def test_a_rank_that_has_not_raised_yet_is_waited_for(late: TrialReport) -> None:
    raised = [TrialReport(rank, "step", error="NameError: x") for rank in (0, 1)]
    told = iter([[late, raised[1]], raised])
    holding: Any = Holding.__new__(Holding)
    holding._reports = lambda: next(told)
    averaged = SimpleNamespace(get=lambda timeout: {0: True, 1: True})
    holding._trials = SimpleNamespace(has_averaged=SimpleNamespace(call=lambda: averaged))
    assert holding._have_all_raised([late, raised[1]])
    assert not holding._have_all_raised([])


def test_one_that_others_have_left_alone_has_not_raised_by_itself() -> None:
    holding: Any = Holding.__new__(Holding)
    reports = [TrialReport(0, "step", error="Interrupted: x"), TrialReport(1, "step", error="x")]
    assert not holding._have_all_raised(reports)
