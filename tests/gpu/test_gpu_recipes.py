"""Recipes on real GPUs: how they start, and what edits do to them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch.actor import Actor, endpoint, this_host
from monarch.config_file import load_config
from tests.cli.command_folder import CommandFolder
from tests.gpu.runs_on_gpus import EDITS, on_gpus, seconds_to_next_step
from tests.gpu_here import num_gpus
from tests.recipes.held_run import LOSS, TASK, HeldRun, importable, project
from tests.support import wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made:
        yield made


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    made = on_gpus(root, "ddp")
    yield made
    made.stop()


def test_a_host_has_as_many_procs_as_gpus(tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    text = folder.monarch("run", "ddp", "--local", "num_epochs=1")
    found = re.search(r"1 host x (\d+) proc", text)
    assert found is not None, text
    assert int(found[1]) == num_gpus()


def test_ranks_with_a_gpu_each_speak_nccl_and_more_of_them_gloo(root: Path, tmp_path: Path) -> None:
    for procs, backend in ((num_gpus(), "nccl"), (2 * num_gpus(), "gloo")):
        told = tmp_path / backend
        note = f"    open({str(told)!r}, 'w').write(dist.get_backend())\n"
        (root / "task.py").write_text(TASK.replace(LOSS, note + LOSS))
        run = on_gpus(root, f"run_{backend}", procs=procs)
        run.start()
        wait_for(lambda run=run: run.error or len(run.steps) > 3, 240.0)
        run.stop()
        assert run.error is None, run.error
        # Of two backends, for both kinds of memory, where NCCL is one.
        assert told.read_text() in (backend, f"cpu:gloo,cuda:{backend}")


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_that_fails_is_held_and_fixed(
    run: HeldRun, kind: str, emit: Callable[..., None]
) -> None:
    line, told = EDITS[kind]
    text = TASK.replace(LOSS, line)
    assert text != TASK
    run.at[5] = lambda: run.push("task.py", text)
    run.start()
    held = run.when_held()
    assert told in held["error"], held
    seconds = seconds_to_next_step(run, "task.py", TASK + "# fixed\n")
    emit(f"ddp.fix_to_step.{kind}", seconds, "s", gpus=num_gpus())
    run.stop()
    assert run.error is None, run.error
    assert run.events("mended")


def test_an_edit_of_a_running_loss_is_taken_at_once(
    run: HeldRun, emit: Callable[..., None]
) -> None:
    run.start()
    run.when_step(5)
    for number in range(3):
        text = TASK.replace(LOSS, LOSS.replace(")\n", f") + {number + 1}\n"))
        seconds = seconds_to_next_step(run, "task.py", text)
        emit("ddp.push_to_step", seconds, "s", number=number, gpus=num_gpus())
    run.stop()
    assert run.error is None, run.error
    assert not run.events("held", "died")


class Modules(Actor):
    """A proc that has used its GPU, and compiled nothing."""

    def __init__(self) -> None:
        self.sum = float(torch.ones(3, device="cuda").sum())

    @endpoint
    def imported(self) -> list[str]:
        import sys

        import task

        assert task.VALUE in (1, 2)
        return sorted(sys.modules)


def test_the_first_push_imports_nothing(tmp_path: Path) -> None:
    import asyncio

    from monarch_sync import Workspace

    with project(tmp_path, "VALUE = 1\n") as root:
        host = this_host()
        workspace = Workspace(dirs={root: ""})
        asyncio.run(host.sync_workspace(workspace))
        modules = host.spawn_procs({"gpus": 1}).spawn("modules", Modules)
        before = modules.imported.call_one().get(timeout=120)
        (root / "task.py").write_text("VALUE = 2\n")
        asyncio.run(host.sync_workspace(workspace))
        after = modules.imported.call_one().get(timeout=120)
        new = set(after) - set(before)
        assert not [name for name in new if name.startswith(("torch", "triton"))], new


COMPILED = TASK.replace(
    "def compute_loss(logits, labels):\n" + LOSS,
    "def plain_loss(logits, labels):\n" + LOSS + "\n\n"
    'compiled_loss = torch.compile(plain_loss, backend="eager")\n\n\n'
    "def compute_loss(logits, labels):\n    return compiled_loss(logits, labels)\n",
)


def test_a_compiled_loss_follows_an_edit(root: Path) -> None:
    """With a backend that needs no compiler of the machine's."""
    assert COMPILED != TASK
    (root / "task.py").write_text(COMPILED)
    run = on_gpus(root, "compiled", procs=1)
    losses: dict[int, float] = {}
    metrics = run.metrics

    def note(step: int, num_steps: int, values: Any) -> None:
        if "loss" in values:
            losses[step] = values["loss"]
        metrics(step, num_steps, values)

    run.metrics = note  # type: ignore[method-assign]
    run.start()
    run.when_step(5)
    assert run.push("task.py", COMPILED.replace(LOSS, LOSS.replace(")\n", ") + 100\n"))).ok
    last = run.steps[-1]
    run.when_step(last + 3)
    run.stop()
    assert run.error is None, run.error
    assert losses[last + 3] > 99 > losses[1]
    assert not run.events("held")


@pytest.fixture
def titan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import tests.recipes.titan_support  # noqa: F401
    from monarch_recipes.titan.tiny import prepare

    made = tmp_path / "project"
    prepare(made)
    monkeypatch.chdir(made)
    undo = importable(made)
    yield made
    undo()


def titan_run(root: Path, name: str, *more: str) -> HeldRun:
    from monarch.runs import Record
    from monarch_recipes import titan as recipe
    from monarch_recipes.titan.config import TitanConfig
    from tests.recipes.titan_support import keys

    settings = keys(
        "model.flavor=test", "training.steps=200", "checkpoint.enable=false",
        "validation.enable=false", "metrics.log_freq=1", *more,
    )  # fmt: skip
    made = HeldRun(root, name)
    made.record = Record(root.parent / name, made, procs_per_host=num_gpus())
    made.record.edits.policy = "hold"
    made.module, made.settings = recipe, {}
    made.config_class = lambda: load_config(TitanConfig, root / "titan.toml", settings).config
    return made


def test_titan_starts_from_its_template_and_takes_edits(
    titan: Path, emit: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its procs are forked from a template that has imported TorchTitan."""
    from tests.recipes.titan_support import LOSS as TITAN_LOSS

    run = titan_run(titan, "titan")
    model = titan / "tiny_llama.py"
    text = model.read_text()
    assert text.count(TITAN_LOSS) == 1
    run.start()
    run.when_step(5)
    assert not [line for line in caplog.messages if "could not preload" in line]
    for edit, told in (
        (TITAN_LOSS.replace("labels", "documint"), "labels"),
        (TITAN_LOSS + '    raise KeyError("mine")\n', "mine"),
        (TITAN_LOSS + "    import os\n    os._exit(3)\n", ""),
        (TITAN_LOSS + "    labels = labels + 10**6\n", ""),
    ):
        number = len(run.events("held")) + 1
        assert run.push(model.name, text.replace(TITAN_LOSS, edit)).ok
        held = run.when_held(number)
        assert told in held["error"], held
        seconds = seconds_to_next_step(run, model.name, text + f"# {number}\n")
        emit("titan.fix_to_step", seconds, "s", edit=number, gpus=num_gpus())
        last = run.steps[-1]
        run.when_step(last + 2)
    run.stop()
    assert run.error is None, run.error


def test_titan_compiled_follows_an_edit(titan: Path) -> None:
    """Where there is what inductor needs: Triton, and a compiler for what it launches."""
    import shutil
    from importlib.util import find_spec

    if find_spec("triton") is None or not (shutil.which("cc") or os.environ.get("CC")):
        pytest.skip("torch.compile needs Triton and a C compiler here")
    from tests.recipes.titan_support import LOSS as TITAN_LOSS

    run = titan_run(titan, "titan_compiled", "compile.enable=true")
    model = titan / "tiny_llama.py"
    text = model.read_text()
    run.start()
    run.when_step(5)
    begin = text.index(TITAN_LOSS)
    place = text.index("    return ", begin)
    changed = text[:place] + "    return 2 * (" + text[place + len("    return ") :]
    end = changed.index("\n\n", place)
    assert run.push(model.name, changed[:end] + ")" + changed[end:]).ok
    last = run.steps[-1]
    run.when_step(last + 3)
    run.stop()
    assert run.error is None, run.error
    assert not run.events("held", "died")


def test_two_groups_on_one_gpu_take_gloo(root: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed")
    from monarch_recipes import fault_tolerant

    run = HeldRun(root, "groups")
    run.module, run.config_class = fault_tolerant, fault_tolerant.FaultTolerantConfig
    run.settings = {"task": "task", "hidden_size": 16, "num_steps": 30, "device": "cuda"}
    run.start()
    wait_for(lambda: run.error or run.steps[-1:] >= [30], 240.0, lambda: "\n".join(run.said))
    run.end()
    assert run.error is None, run.error
    assert not run.events("died", "respawned")
    told = [line for line in run.said if "NCCL error" in line]
    assert not told
