"""Edits that fail when they run: the run holds, the fix goes on, and nothing is lost by it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from monarch.config import configured
from monarch.runs import Record
from monarch.runs.hold.hold_report import HoldReport
from monarch.runs.record.edits import OnEditError
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes import ddp
from monarch_sync import SyncReport
from tests.recipes.held_run import LOSS, TASK, HeldRun, kill_a_rank, project
from tests.support import wait_for

pytestmark = pytest.mark.timeout(300)

STEPS = 44
LATE_STEP = 34
RANK_1 = "    if dist.get_rank() == 1:\n"
RATE = "    return config.learning_rate\n"
BACKWARD = """

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in backward")
"""

# What is put in front of the loss, or in the place of another line; and what is to be told of it.
EDITS: dict[str, tuple[Callable[[str], str], str]] = {
    "name": (lambda t: t.replace("(logits, labels)\n\n", "(logits, labelz)\n\n"), "labelz"),
    "shape": (lambda t: t.replace(LOSS, LOSS.replace("(logits,", "(logits[1:],")), "batch_size"),
    "argument": (lambda t: t.replace(LOSS, LOSS.replace(", labels", "")), "argument"),
    "import": (lambda t: t.replace(LOSS, "    import nowhere\n" + LOSS), "nowhere"),
    "loop": (lambda t: t.replace(LOSS, "    while True:\n        pass\n" + LOSS), "not ended"),
    "memory": (lambda t: t.replace(LOSS, "    raise MemoryError('no room')\n"), "MemoryError"),
    "one rank": (
        lambda t: t.replace(LOSS, RANK_1 + "        raise KeyError('mine')\n" + LOSS),
        "KeyError",
    ),
    "backward": (
        lambda t: t.replace(LOSS, LOSS.replace("(logits,", "(Fails.apply(logits),")) + BACKWARD,
        "in backward",
    ),
    "data": (
        lambda t: t.replace("self.samples[index]", "self.samplez[index]"),
        "samplez",
    ),
    "exit": (lambda t: t.replace(LOSS, "    raise SystemExit(3)\n"), "SystemExit"),
    "rate on one rank": (
        lambda t: t.replace(
            "    return config.learning_rate",
            RANK_1 + "        return config.rate\n    return config.learning_rate",
        ),
        "rate",
    ),
    "a loop on one rank": (
        lambda t: t.replace(LOSS, RANK_1 + "        while True: pass\n" + LOSS),
        "not ended",
    ),
}  # fmt: skip


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    made = HeldRun(root)
    yield made
    made.stop()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=2.0):
        yield made


@pytest.mark.long
def test_no_edit_that_fails_ends_a_run_or_changes_what_it_learns(root: Path, run: HeldRun) -> None:
    undisturbed = HeldRun(root, "undisturbed")
    undisturbed.start()
    undisturbed.end()
    assert undisturbed.error is None, undisturbed.error

    reports = []
    for number, (edit, _) in enumerate(EDITS.values()):
        text = edit(TASK)
        assert text != TASK
        run.at[2 * number + 2] = lambda text=text: reports.append(run.push("task.py", text))
    # A branch that goes well for some steps, and then is another one.
    later = TASK.replace(
        RATE, f"    if step + 1 == {LATE_STEP}:\n        return config.later\n{RATE}"
    )
    run.at[LATE_STEP - 4] = lambda: reports.append(run.push("task.py", later))
    run.have_slow_steps_held()
    run.start()
    for number, (name, (_, told)) in enumerate(EDITS.items(), 1):
        held = run.when_held(number)
        assert told in held["error"], (name, held)
        assert held["doing"] == f"step {2 * number + 1}", name
        assert held["in_place"], (name, run.said)
        if "rank" in name:
            assert held["ranks"] == [1], name
        assert held["file"] == "task.py", (name, held)
        assert held["line"] > 0, (name, held)
        assert run.push("task.py", TASK + f"# {number}\n").ok
    held = run.when_held(len(EDITS) + 1)
    assert "later" in held["error"], held
    assert (held["doing"], held["in_place"]) == (f"step {LATE_STEP}", True), held
    assert run.push("task.py", TASK + "# at last\n").ok
    run.end()
    assert run.error is None, run.error
    assert all(report.ok for report in reports)
    assert len(run.events("mended")) == len(EDITS) + 1
    assert run.steps == list(range(1, STEPS + 1)), "no step is made twice, or left out"
    assert run.digest() == undisturbed.digest()


@pytest.mark.long
def test_a_rank_without_others_is_put_back_and_keeps_its_groups(root: Path) -> None:
    runs = [HeldRun(root, name) for name in ("undisturbed", "ddp")]
    for run in runs:
        run.record = Record(root.parent / run.record.folder.name, run, procs_per_host=1)
        run.record.edits.policy = "hold"
    undisturbed, run = runs
    undisturbed.start()
    undisturbed.end()
    edits = [EDITS[name][0](TASK) for name in ("name", "backward", "loop")]
    for number, text in enumerate(edits):
        run.at[2 * number + 2] = lambda text=text: run.push("task.py", text)
    run.have_slow_steps_held()
    run.start()
    for number in range(1, len(edits) + 1):
        assert run.when_held(number)["in_place"], run.said
        assert run.push("task.py", TASK + f"# {number}\n").ok
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, STEPS + 1))
    assert run.digest() == undisturbed.digest()


def broken(text: str = TASK) -> str:
    return EDITS["name"][0](text)


def hold_after(run: HeldRun, step: int) -> None:
    run.at[step] = lambda: run.push("task.py", broken())
    run.start()
    run.when_held()


@pytest.mark.long
def test_a_step_that_failed_late_on_one_rank_is_undone_on_all(root: Path) -> None:
    """Rank 0 has made it: its weights are those of the step, and its count."""
    text = Path(ddp.__file__).read_text()
    done = "        self.num_steps_done = step\n"
    assert text.count(done) == 1
    late = text.replace(
        done, f'{done}        if self.rank == 1:\n            raise ValueError("late")\n'
    )
    shown = "\n\ndef shown(results):\n    return measured(results)\n"
    text = text.replace("measured(results))", "shown(results))") + shown
    late += shown
    lost = text.replace("return measured(results)", "return measured(results + nothing)")
    assert lost != text
    (root / "my_ddp.py").write_text(text)
    module = importlib.import_module("my_ddp")
    straight, run = HeldRun(root, "straight"), HeldRun(root)
    for one in (straight, run):
        one.module, one.config_class = module, module.DDPConfig
    straight.start()
    straight.end()

    # The hook that hears of new code is new code as well: it refuses, and nothing has changed.
    hook = '        if hasattr(self, "parallel_model"):\n'
    assert text.count(hook) == 1
    refusing = text.replace(hook, '        raise TypeError("no such code")\n' + hook)
    refused = []
    run.at[2] = lambda: refused.append(run.push("my_ddp.py", refusing))
    run.at[3] = lambda: run.push("my_ddp.py", late)
    run.at[5] = lambda: run.push("my_ddp.py", lost)
    run.start()
    assert "late" in run.when_held(1)["error"]
    assert run.push("my_ddp.py", text).ok
    held = run.when_held(2)  # in the client, between two steps
    assert (held["doing"], held["file"]) == ("metrics", "my_ddp.py")
    assert run.push("my_ddp.py", text + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert "__reload__" in refused[0].errors[0], refused
    assert "no such code" in refused[0].errors[0], refused
    assert run.digest() == straight.digest()


@pytest.mark.long
def test_ctrl_c_while_it_holds_saves_what_was_learned(run: HeldRun, root: Path) -> None:
    hold_after(run, 5)
    run.push("task.py", broken() + "# still\n")
    run.when_held(2)
    run.stop()
    assert run.error is None, run.error
    assert run.outcome.step == 5
    assert not run.events("mended"), "the save went well, not what failed"
    saved = run.digest()
    again = HeldRun(root, "straight")
    again.at[5] = again.record.stop
    (root / "task.py").write_text(TASK)
    again.start()
    again.end()
    assert again.digest() == saved


@pytest.mark.long
def test_a_rank_that_dies_while_it_holds_is_told_and_the_mend_goes_on(run: HeldRun) -> None:
    run.settings["checkpoint_every"] = 4
    hold_after(run, 5)
    kill_a_rank()
    wait_for(lambda: run.events("held_still"), 60.0, "the death is told")
    assert run.push("task.py", TASK + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    (again,) = run.events("respawned")
    assert again["text"].endswith("s later, from step 6"), again
    (resumed,) = run.events("resumed")
    assert resumed["text"] == "goes on from step 5, from the host's memory"
    assert run.steps == [*range(1, STEPS + 1)]


@pytest.mark.long
@pytest.mark.parametrize("how", ["k", "mend"])
def test_ranks_that_are_stuck_do_not_keep_the_mend_away(run: HeldRun, how: str) -> None:
    """Their processes are ended when a person wants it, or has pushed a fix; until then nothing
    that they have learned is given up."""
    begins(run)
    run.settings["checkpoint_every"] = 4
    stuck = TASK.replace(
        LOSS,
        f"    from threading import Lock\n    lock = Lock()\n    with lock, lock: pass\n{LOSS}",
    )
    run.at[6] = lambda: run.push("task.py", stuck)
    if how == "k":
        run.have_slow_steps_held()
    run.start()
    if how == "k":
        held = run.when_held()
        assert (held["doing"], held["ranks"], held["in_place"]) == ("step 7", [0, 1], False), held
        assert held["file"] == "task.py", held
        assert stuck.splitlines()[held["line"] - 1].startswith("    with lock"), held
    else:
        wait_for(lambda: run.error or run.events("slow"), 120.0, "it is told")
        assert not run.events("held"), run.said
    assert run.push("task.py", TASK + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert not run.events("held_still", "died"), "they were ended on purpose"
    assert run.steps == [*range(1, STEPS + 1)]


@pytest.mark.long
def test_a_restart_on_code_that_cannot_start_holds(run: HeldRun) -> None:
    """What builds the model runs at the start alone: nobody finds out until a rank dies."""
    run.settings.update(checkpoint_every=4, max_restarts=1)
    bad = TASK.replace("    return nn.Sequential(", "    return nn.Sequentially(")
    run.at[6] = lambda: (run.push("task.py", bad), kill_a_rank())
    run.start()
    held = run.when_held()
    assert "Sequentially" in held["error"]
    assert (held["doing"], held["in_place"]) == ("setting up", False)
    assert run.push("task.py", TASK + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == STEPS
    assert len(run.events("begun_again")) == 1


def begins(run: HeldRun) -> int:
    """The run begins; what is pushed from here on is an edit."""
    name = "task" if run.module is ddp else "my_ddp"
    importlib.import_module(name)  # What nobody has imported here is nothing to push.
    generation = run.push(f"{name}.py", (run.root / f"{name}.py").read_text()).generation
    run.record.edits.begin(generation)
    return generation


# What is saved while a run starts, in the place of what, and what is told to fail by it.
AT_START = {
    "Sequentially": ("    return nn.Sequential(", "    return nn.Sequentially(", "setting up"),
    "samplez": ("    data = ddp.load_data(config)", "    data = samplez", "setting up"),
    "mat1 and mat2": ("nn.Linear(16, 10)", "nn.Linear(17, 10)", "step 1"),
    "labelz": (LOSS, LOSS.replace("labels", "labelz"), "step 1"),
}


@pytest.mark.long
def test_a_typo_that_is_saved_while_the_run_starts_does_not_end_it(run: HeldRun) -> None:
    began = begins(run)
    edits = [TASK.replace(old, new) for old, new, _ in AT_START.values()]
    assert run.push("task.py", edits[0]).ok
    run.start()
    for number, (told, (_, _, doing)) in enumerate(AT_START.items(), 1):
        held = run.when_held(number)
        assert told in held["error"], held
        assert (held["doing"], held["in_place"]) == (doing, False), held
        assert held["good"] == began, held
        is_last = number == len(AT_START)
        report = run.push("task.py", TASK if is_last else edits[number])
        assert report.ok
        assert "next start" not in str(report.warnings), "it counts from the one that waits"
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, STEPS + 1))
    assert not run.events("died", "hung")
    (mended,) = run.events("mended")
    assert mended["text"].startswith("step 1 went well on"), mended


@pytest.mark.long
def test_code_of_the_start_waits_for_the_next_where_the_run_holds_in_place(run: HeldRun) -> None:
    hold_after(run, 5)
    again = broken().replace("Dropout(0.5)", "Dropout(0.4)")
    counts = "task.build_model counts from the next start of the run"
    assert counts in run.push("task.py", again).warnings
    run.when_held(2)
    assert run.push("task.py", TASK).warnings == [counts]
    run.end()
    assert run.error is None, run.error


@pytest.mark.long
def test_a_trainer_that_cannot_be_made_any_more_holds(run: HeldRun, root: Path) -> None:
    """Its `__init__` is called by nothing but a start."""
    text = Path(ddp.__file__).read_text()
    (root / "my_ddp.py").write_text(text)
    run.module = importlib.import_module("my_ddp")
    run.config_class = run.module.DDPConfig
    begins(run)
    assert run.push("my_ddp.py", text.replace("= Path(checkpoint_dir)", "= Pathh(here)")).ok
    run.start()
    held = run.when_held()
    assert "Pathh" in held["error"], held
    assert (held["file"], held["in_place"]) == ("my_ddp.py", False), held
    report = run.push("my_ddp.py", text)
    assert report.ok
    assert "next start" not in str(report.warnings), "it counts from the one that waits"
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == STEPS


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.long
def test_code_that_cannot_start_and_was_never_edited_holds_where_a_person_watches(
    run: HeldRun, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: watched)
    (run.root / "task.py").write_text(TASK.replace("nn.Sequential(", "nn.Sequentially("))
    run.start()
    if not watched:
        run.end()
        assert isinstance(run.error, RunFailed)
        assert "Sequentially" in str(run.error)
        assert not run.events("held")
        return
    held = run.when_held()
    assert "Sequentially" in held["error"]
    assert "rollback" not in held["text"]
    assert "after the fix it begins again, in new processes" in held["text"]
    assert run.push("task.py", broken()).ok
    held = run.when_held(2)
    assert held["doing"] == "step 1", held
    assert run.push("task.py", TASK).ok
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, STEPS + 1))


@pytest.mark.long
def test_what_no_mend_of_the_code_can_help_ends_a_run_that_is_watched(
    run: HeldRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: True)
    run.settings["global_batch_size"] = 1_000_000
    run.start()
    run.end()
    assert isinstance(run.error, RunFailed)
    assert "samples" in str(run.error)
    assert not run.events("held")


@pytest.mark.long
def test_code_that_kills_its_process_holds_the_second_time(run: HeldRun) -> None:
    run.settings["checkpoint_every"] = 4
    bad = TASK.replace(LOSS, RANK_1 + "        __import__('os')._exit(9)\n" + LOSS)
    run.at[6] = lambda: run.push("task.py", bad)
    run.start()
    held = run.when_held()
    assert "a rank died, for the second time" in held["error"]
    assert len(run.events("died")) == 1
    assert run.push("task.py", TASK + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == STEPS


@pytest.mark.long
def test_what_failed_on_good_code_still_ends_the_run(run: HeldRun) -> None:
    run.settings["task"] = "task"
    (run.root / "task.py").write_text(broken())
    run.start()
    run.end()
    assert isinstance(run.error, RunFailed)
    assert "labelz" in str(run.error)
    assert not run.events("held")


WIDTH = "nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10)"
WIDER = WIDTH.replace("16", "24")
SGD = """

def build_optimizer(config, model):
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("edited", "told"),
    [
        (TASK.replace(WIDTH, WIDER), "the copy in the host's memory is of another model"),
        (TASK + SGD, "the copy in the host's memory is of another optimizer than SGD"),
    ],
    ids=["model", "optimizer"],
)
@pytest.mark.parametrize("policy", ["hold", "rollback"])
def test_a_restart_on_code_that_does_not_fit_the_checkpoint_holds(
    run: HeldRun, edited: str, told: str, policy: OnEditError
) -> None:
    """Until then it trains on with the model that it has, through another edit, and saves it."""
    run.settings.update(checkpoint_every=4, max_restarts=1)
    reports = []
    other = TASK.replace("config.learning_rate", "config.learning_rate * 1.0")
    run.at[3] = lambda: reports.append(run.push("task.py", other))
    edited = edited.replace("config.learning_rate", "config.learning_rate * 1.0")
    run.at[6] = lambda: reports.append(run.push("task.py", edited))
    run.at[10] = lambda: reports.append(run.push("task.py", edited + "# another\n"))
    run.at[14] = kill_a_rank
    gone_back_to = []

    def roll_back(good: int) -> SyncReport:
        gone_back_to.append(good)
        return run.push("task.py", other)

    run.record.edits.policy = policy
    run.record.code = SimpleNamespace(
        roll_back=roll_back,
        generation=0,
        move_to=lambda generation: None,
        is_loaded_since=lambda generation: True,
    )
    run.start()
    if policy == "hold":
        held = run.when_held()
        assert run.push("task.py", other + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    first, second, third = reports
    assert any("next start cannot go on from" in one for one in second.warnings)
    assert not first.warnings
    assert not third.warnings
    if policy == "rollback":
        (held,) = run.events("failed_edit")
        assert gone_back_to == [first.generation]
    else:
        assert not held["in_place"]
    assert told in held["error"]
    assert held["doing"] == "setting up"
    assert f"Generation {second.generation} of the code changed what a start builds" in held["text"]
    assert held["generation"] == third.generation
    assert held["good"] == first.generation
    assert run.steps == [*range(1, 15), *range(13, STEPS + 1)]
    assert len(run.events("died")) == 1, "the hold costs no restart"
