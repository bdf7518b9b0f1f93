"""Replica groups for real: small ones, on this machine, that are made to suffer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.actor import this_host
from monarch.config_file import ConfigError, load_config
from monarch.runs import LiveConfig, Record
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from monarch_recipes.extras import Extras
from monarch_recipes.fault_tolerant import FaultTolerantConfig, GroupsOutcome, run
from monarch_recipes.replicas import client
from monarch_recipes.replicas.controller import Controller
from monarch_recipes.replicas.group import Group
from monarch_recipes.replicas.groups import GroupsError
from monarch_recipes.replicas.lighthouse import LighthouseError
from monarch_recipes.replicas.messages import StepMetrics, TaskError
from monarch_sync import Workspace

pytestmark = pytest.mark.timeout(300)  # Libraries that are imported take long under load.

SLOWLY = """
import time

from torch.nn import functional


def compute_loss(logits, labels):
    time.sleep(0.01)
    return functional.cross_entropy(logits, labels)
"""

LONG = 100_000
"""Steps that no run here makes: it is stopped when what it waits for has happened."""

STAYING = {"heartbeat_timeout_seconds": 60.0}
"""For groups that do not die: where the machine stands still, none takes another for dead."""

OnStep = Callable[["Run", int], None]


class Run:
    """One run, with what it wrote, and something to do at each of its steps."""

    def __init__(self, folder: Path, on_step: OnStep | None = None) -> None:
        self.texts: list[str] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.on_step = on_step
        self.record = Record(folder, self, procs_per_host=4)

    def go(self, **settings: Any) -> GroupsOutcome:
        # On a machine under load a group may stay out for long without having died.
        patient = {"hang_timeout_seconds": 30.0, "max_restarts": 20}
        settings = {"hidden_size": 16, "num_steps": 60, "task": "slowly", **patient, **settings}
        return run(FaultTolerantConfig(**settings), this_host(), self.record)

    def message(self, text: str) -> None:
        self.texts.append(text)

    def alarm(self, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if "loss" not in values:
            return  # of the evaluation at the end
        self.rows.append((step, dict(values)))
        if self.on_step is not None:
            self.on_step(self, step)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        lines = (self.record.folder / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [event for event in found if not kinds or event["kind"] in kinds]

    def pid_of(self, group: int) -> int:
        started = self.events("started", "respawned")
        pids = [event["pids"] for event in started if event["group"] == group]
        return int(pids[-1][0])

    def lighthouse_pid(self) -> int:
        return int(self.events("lighthouse")[-1]["pid"])


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # What was to be killed has just ended by itself.


def at(wanted: int, act: Callable[[Run], None]) -> OnStep:
    """Do something once, at a step."""
    done: list[int] = []

    def look(run: Run, step: int) -> None:
        if step >= wanted and not done:
            done.append(step)
            act(run)

    return look


def check_identical(outcome: GroupsOutcome, num_groups: int = 2) -> None:
    assert len(outcome.fingerprints) == num_groups, outcome
    assert len(set(outcome.fingerprints.values())) == 1, outcome


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, beside modules that procs can import."""
    write(tmp_path, "slowly", SLOWLY)
    monkeypatch.syspath_prepend(str(tmp_path / "tasks"))
    return tmp_path / "run"


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / "tasks" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.long
def test_groups_that_are_asked_ahead_learn_save_and_tell_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**STAYING, "num_steps": 24, "checkpoint_every": 7, "evaluate_every": 5}
    found: list[bool] = []
    decide = Controller.may_go_ahead

    def noted(self: Controller, group: Group, last_seconds: float) -> bool:
        # On a machine under load steps are short, too.
        found.append(decide(self, group, 0.0))
        return found[-1]

    ahead, one_by_one = Run(folder), Run(folder.with_name("one"))
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "may_go_ahead", noted)
        with_it = ahead.go(**settings)
    assert any(found)
    monkeypatch.setattr(Controller, "may_go_ahead", lambda *ignored: False)
    without = one_by_one.go(**settings)
    check_identical(with_it)
    assert with_it.fingerprints == without.fingerprints
    assert [step for step, _ in ahead.rows] == [step for step, _ in one_by_one.rows]
    saved = [[event["step"] for event in run.events("saved")] for run in (ahead, one_by_one)]
    assert saved[0] == saved[1]
    assert saved[0][:3] == [7, 14, 21]


@pytest.mark.slow
def test_a_killed_group_and_a_killed_lighthouse_come_back_and_all_end_identical(
    folder: Path,
) -> None:
    # Each as soon as what was killed before is back.
    left = [
        lambda one: kill(one.pid_of(1)),
        lambda one: kill(one.lighthouse_pid()),
        lambda one: kill(one.pid_of(0)),
        lambda one: one.record.stop(),
    ]

    def on_step(one: Run, step: int) -> None:
        num_killed = 4 - len(left)
        num_back = len(one.events("healed")) + len(one.events("lighthouse")) - 1
        if step >= 30 and left and num_back >= num_killed:
            left.pop(0)(one)

    one = Run(folder, on_step)
    # Large enough to be read from the memory of the one that lives.
    outcome = one.go(num_steps=LONG, chaos="slow@20 group=0 seconds=0.3", hidden_size=512)
    check_identical(outcome)
    steps = [step for step, _ in one.rows]
    assert steps == list(range(1, outcome.step + 1)), "no step was lost, and none made twice"
    victims = [incident.victim for incident in outcome.report.incidents]
    assert list(dict.fromkeys(victims)) == ["group 1", "lighthouse", "group 0"]
    assert {event["group"] for event in one.events("respawned")} == {0, 1}
    assert one.events("lighthouse")[0]["url"] == one.events("lighthouse")[1]["url"]
    stopped = one.events("stopped")[0]
    assert set(stopped["fingerprints"].values()) == set(outcome.fingerprints.values())
    assert 0 < stopped["goodput"] <= 1
    assert one.texts[-2].startswith("goodput ")


@pytest.mark.slow
def test_a_group_that_is_late_does_not_train_alone(folder: Path) -> None:
    one = Run(folder)
    # The survivor goes on before a new process can be there: it need not wait for the dead one.
    outcome = one.go(num_steps=30, chaos="kill@30 group=1", heartbeat_timeout_seconds=0.15)
    check_identical(outcome)
    # Where the machine is slow to let the survivor go on, it is there in time after all.
    assert [e["group"] for e in one.events("adopted") or one.events("healed")] == [1]
    assert [step for step, _ in one.rows] == list(range(1, 31))
    assert outcome.checkpoint.name == "step-00000030.pt"


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["localsgd", "diloco"])
def test_groups_that_seldom_meet_end_identical_too(folder: Path, algorithm: str) -> None:
    one = Run(folder)
    outcome = one.go(num_steps=20, algorithm=algorithm, chaos="kill@5 group=0", sync_every=4)
    check_identical(outcome)
    assert outcome.step == 20
    assert one.events("respawned")[0]["group"] == 0


@pytest.mark.slow
def test_a_member_of_a_larger_group_takes_its_group_with_it_and_no_other(folder: Path) -> None:
    def prune(one: Run, step: int) -> None:
        # As others do that go on, and save, while the group is on its way.
        if step >= 8 and not one.events("healed"):
            for path in checkpoint_paths(one.record.checkpoint_dir):
                path.unlink(missing_ok=True)

    one = Run(folder, prune)
    outcome = one.go(
        num_steps=60, procs_per_group=2, checkpoint_every=5, chaos="kill@10 group=1 rank=1"
    )
    check_identical(outcome)
    assert [event["group"] for event in one.events("respawned")] == [1]
    assert len(one.events("respawned")[0]["pids"]) == 2


@pytest.mark.slow
def test_a_group_that_hangs_is_left_out_and_started_again(folder: Path) -> None:
    one = Run(folder)
    outcome = one.go(num_steps=150, hang_timeout_seconds=0.5, chaos="hang@10 group=0 when=before")
    check_identical(outcome)
    assert "it hangs" in one.events("died")[0]["reason"]
    assert one.events("died")[0]["group"] == 0


HANGING = """
import pathlib
import time

from slowly import compute_loss as slowly
from monarch.actor import current_actor_name, current_rank

MARKER = pathlib.Path(__file__).with_name("has_hung")
calls = 0


def compute_loss(logits, labels):
    global calls
    calls += 1
    if calls == 12 and current_rank().rank == 1 and "trainer1" in current_actor_name():
        if not MARKER.exists():
            MARKER.touch()
            hang_here()
    return slowly(logits, labels)


def hang_here():
    while True:
        time.sleep(0.1)
"""


@pytest.mark.long
def test_a_rank_that_hangs_is_named_with_the_stacks_of_its_group(
    folder: Path, tmp_path: Path
) -> None:
    write(tmp_path, "hanging", HANGING)

    def stop_when_healed(one: Run, step: int) -> None:
        if one.events("healed"):
            one.record.stop()

    one = Run(folder, stop_when_healed)
    outcome = one.go(
        task="hanging", num_steps=LONG, procs_per_group=2, hang_timeout_seconds=2.0,
        collective_timeout_seconds=3.0, join_timeout_seconds=3.0,
    )  # fmt: skip
    check_identical(outcome)
    (died,) = one.events("died")
    first, _, stacks = died["text"].partition("\n")
    assert first.startswith("group 1 is lost after step 11: ")
    assert stacks.index("rank 1 hangs") < stacks.index("in hang_here")
    assert "rank 0 hangs" not in stacks


DRIFTING = """
import pathlib

import torch
from slowly import compute_loss
from monarch.actor import current_actor_name

MARKER = pathlib.Path(__file__).with_name("drifted")


class Drifting(torch.nn.Linear):
    calls = 0

    def forward(self, images):
        assert self.training == torch.is_grad_enabled(), "measured with dropout"
        self.calls += 1
        if self.calls == 15 and "trainer1" in current_actor_name() and not MARKER.exists():
            MARKER.touch()
            with torch.no_grad():
                self.weight.add_(1e-3)
        return super().forward(images.flatten(1))


def build_model(config):
    return Drifting(64, 10)
"""


@pytest.mark.slow
def test_parameters_that_have_come_apart_are_found_and_healed(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, "drifting", DRIFTING)
    one = Run(folder)
    outcome = one.go(task="drifting", num_steps=100, fingerprint_every=10)
    check_identical(outcome)
    found = one.events("fingerprint")
    assert [event["step"] for event in found] == [20]
    assert found[0]["agreed_step"] == 10
    assert found[0]["text"].endswith(", in weight")
    assert "its parameters have come apart" in one.events("died")[0]["reason"]


EDIT = """

def compute_loss(logits, labels):
    time.sleep(0.01)
    return functional.cross_entropy(logits, labels) + 1000
"""


@pytest.mark.slow
def test_an_edit_is_run_by_all_groups_and_by_one_that_is_started_later(
    folder: Path, tmp_path: Path
) -> None:
    task = write(tmp_path, "edited", SLOWLY)

    def on_step(one: Run, step: int) -> None:
        if step >= 10 and not edited:
            task.write_text(SLOWLY + EDIT)
            report = asyncio.run(this_host().sync_workspace(Workspace(dirs={task.parent: ""})))
            assert report.ok
            assert report.modules_reloaded == ["edited.py"]
            edited.append(step)
            kill(one.pid_of(1))
        elif one.events("healed"):
            one.record.stop()

    edited: list[int] = []
    asyncio.run(this_host().sync_workspace(Workspace(dirs={task.parent: ""})))
    one = Run(folder, on_step)
    check_identical(one.go(task="edited", num_steps=LONG))
    losses = [values["loss"] for _, values in one.rows]
    # A step may be half of each code, that in which the switch came. Then all of it is new: the
    # mean over both groups would show if the one that was killed had come back with the old.
    new = next(index for index, loss in enumerate(losses) if loss > 900)
    assert edited[0] <= one.rows[new][0]
    assert all(loss > 900 for loss in losses[new:])
    assert one.rows[-1][1]["participants"] == 2
    assert len({values["generation"] for _, values in one.rows}) == 2


@pytest.mark.long
def test_the_learning_rate_may_be_edited_in_a_running_config(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "groups.toml"
    file.write_text("learning_rate = 1e-3\nnum_steps = 100_000\n")

    def on_step(one: Run, step: int) -> None:
        if step == 20:
            file.write_text("learning_rate = 0.25\nnum_steps = 100_000\n")
        elif one.rows[-1][1]["learning_rate"] > 0.1:
            one.record.stop()

    one = Run(folder, on_step)
    config = FaultTolerantConfig(learning_rate=1e-3, num_steps=LONG)
    one.record.config_file = LiveConfig(
        config, {file: lambda: load_config(FaultTolerantConfig, file).config}
    )
    check_identical(one.go(learning_rate=1e-3, num_steps=LONG))
    assert one.events("config")[0]["applied"] == {"learning_rate": [1e-3, 0.25]}


@pytest.mark.long
def test_a_run_that_is_interrupted_saves_first(folder: Path) -> None:
    one = Run(folder)

    def interrupt() -> None:
        # As a terminal does it: while the client waits for the next step.
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.2, interrupt)
    one.on_step = at(20, lambda run: timer.start())
    with pytest.raises(KeyboardInterrupt):
        one.go(num_steps=LONG)
    timer.join()
    assert one.events("stopped")
    assert checkpoint_paths(one.record.checkpoint_dir)


@pytest.mark.long
def test_a_stop_while_a_group_hangs_saves_what_the_other_has_learned(folder: Path) -> None:
    """They are in a collective, in which the other would wait for `collective_timeout_seconds`."""
    stopped_at: list[float] = []

    def hang(one: Run) -> None:
        os.kill(one.pid_of(1), signal.SIGSTOP)
        stopped_at.append(time.monotonic())
        one.record.stop()

    one = Run(folder, at(30, hang))
    outcome = one.go(
        num_steps=LONG, checkpoint_every=0, collective_timeout_seconds=120.0,
        join_timeout_seconds=120.0, quorum_timeout_seconds=130.0, **STAYING,
    )  # fmt: skip
    seconds = time.monotonic() - stopped_at[0]
    assert outcome.step >= 30
    saved = load_checkpoint(checkpoint_paths(one.record.checkpoint_dir)[-1])
    assert saved.step == outcome.step
    assert seconds < 60.0, "a machine under load takes some seconds more than the 5 that it is"


NEVER_HEALED = """
import time

from monarch_recipes.replicas.torchft_cures import ReachableTransport
from slowly import compute_loss

receive = ReachableTransport.recv_checkpoint


def recv_checkpoint(self, src_rank, metadata, step, timeout):
    if step > 0:  # All get the first weights of one of them.
        time.sleep(600)
    return receive(self, src_rank, metadata, step, timeout)


ReachableTransport.recv_checkpoint = recv_checkpoint
"""


def stopped(one: Run, when: str, seconds_later: float, **settings: Any) -> float:
    """Stops a run so long after it has told of something; seconds until it ended."""
    stopped_at: list[float] = []

    def stop() -> None:
        stopped_at.append(time.monotonic())
        one.record.stop()

    def message(text: str) -> None:
        one.texts.append(text)
        if text.startswith(when) and not timers:
            timers.append(threading.Timer(seconds_later, stop))
            timers[0].start()

    timers: list[threading.Timer] = []
    one.message = message  # type: ignore[method-assign]
    try:
        one.go(num_steps=LONG, **settings)
    except (KeyboardInterrupt, GroupsError):
        pass
    finally:
        for timer in timers:
            timer.join()
    return time.monotonic() - stopped_at[0]


OF_OTHERS = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=3, join_timeout_ms=100)
print(server.address(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_lighthouse() -> Iterator[str]:
    """The address of a lighthouse that wants more groups than come, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", OF_OTHERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        told = server.stdout.readline().strip()
        yield f"http://127.0.0.1:{told.rsplit(':', 1)[1]}"
        server.stdin.close()


@pytest.mark.long
@pytest.mark.parametrize("is_served", [True, False])
def test_a_stop_in_a_quorum_that_never_comes_ends_the_run(folder: Path, is_served: bool) -> None:
    """Groups wait for a lighthouse of others that wants more groups, or does not answer."""
    listener = socket.create_server(("127.0.0.1", 0))  # It lets in, and says nothing.
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.ExitStack() as ends:
        ends.enter_context(listener)
        if is_served:
            address = ends.enter_context(other_lighthouse())
        seconds = stopped(Run(folder), "group 1 is there", 5.0, lighthouse=address, **STAYING)
    assert seconds < 60.0, "a machine under load takes some seconds more than the 5 that it is"


@pytest.mark.long
def test_a_stop_while_a_group_heals_ends_the_run(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, "never_healed", NEVER_HEALED)
    one = Run(folder, at(20, lambda run: kill(run.pid_of(1))))
    seconds = stopped(one, "group 1 is there again", 3.0, task="never_healed", checkpoint_every=0)
    assert seconds < 60.0
    saved = checkpoint_paths(one.record.checkpoint_dir)
    assert saved, f"what the other has learned is to be saved: {one.texts}, after {seconds} s"


@pytest.mark.long
@pytest.mark.parametrize("num_kills", [1, 3])
def test_a_group_that_dies_before_the_first_step_is_waited_for(
    folder: Path, num_kills: int
) -> None:
    """Once the run stood still for `step_timeout_seconds`, trained alone then, and never ended."""
    one = Run(folder)
    left = [None for _ in range(num_kills)]

    def message(text: str) -> None:
        one.texts.append(text)
        if text.startswith("group 0 is there") and left:
            left.pop()
            kill(one.pid_of(0))

    one.message = message  # type: ignore[method-assign]
    outcome = one.go(num_steps=30, **STAYING)
    check_identical(outcome)
    assert [event["group"] for event in one.events("respawned")] == [0] * num_kills
    assert [event["group"] for event in one.events("died")] == [0] * num_kills
    assert {values["participants"] for _, values in one.rows} == {2.0}
    assert [step for step, _ in one.rows] == list(range(1, 31))


@pytest.mark.long
def test_what_was_told_just_before_ctrl_c_is_written_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_down, interrupted = client._write_down, list[int]()

    def write(said: Any, record: Any) -> None:
        if isinstance(said, StepMetrics) and said.step == 20 and not interrupted:
            interrupted.append(said.step)
            raise KeyboardInterrupt
        write_down(said, record)

    monkeypatch.setattr(client, "_write_down", write)
    one = Run(folder)
    with pytest.raises(KeyboardInterrupt):
        one.go(num_steps=LONG)
    steps = [step for step, _ in one.rows]
    assert steps == list(range(1, len(steps) + 1))
    assert interrupted


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    first = Run(folder, at(20, lambda one: one.record.stop()))
    stopped = first.go(num_steps=1000)
    check_identical(stopped)
    # A save is waited for, until which all is told: the one after step 50, at the latest.
    assert 20 < stopped.step < 60
    assert first.events("stopped")

    again = Run(folder)
    outcome = again.go(num_steps=stopped.step + 10)
    check_identical(outcome)
    assert [step for step, _ in again.rows] == list(range(stopped.step + 1, stopped.step + 11))

    other = Run(folder)
    with pytest.raises(TaskError, match=r"cannot be set up: .* is of another model"):
        other.go(hidden_size=24)
    damaged = checkpoint_paths(other.record.checkpoint_dir)[-1]
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"a file that is damaged, or no checkpoint: .*step-"):
        other.go(resume=str(damaged))


FAILING = """
import pathlib

from slowly import compute_loss as slowly
from monarch.actor import current_actor_name

calls = 0


def compute_loss(logits, labels):
    global calls
    calls += 1
    if calls == 8 and "trainer1" in current_actor_name():
        {what}
    return slowly(logits, labels)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "reason"),
    [("raise OSError('sample is unreadable')", "OSError: sample is unreadable"),
     ("return logits.sum() * float('nan')", "the loss is nan")],
)  # fmt: skip
def test_an_error_of_the_task_ends_the_run_with_its_place(
    folder: Path, tmp_path: Path, what: str, reason: str
) -> None:
    name = "failing" + str(len(what))
    write(tmp_path, name, FAILING.format(what=what))
    one = Run(folder)
    with pytest.raises(TaskError) as caught:
        one.go(task=name)
    assert caught.value.where.startswith("group 1, rank 0, on ")
    assert ", in batch 7, samples " in caught.value.where
    assert caught.value.reason == reason
    assert one.events("failed")
    assert not one.events("respawned"), "no restart mends it"


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["ddp", "localsgd"])
def test_a_gradient_that_is_no_number_ends_the_run_and_spoils_no_checkpoint(
    folder: Path, tmp_path: Path, algorithm: str
) -> None:
    name = f"steep_{algorithm}"
    # A loss of which nothing shows but in the gradient.
    write(tmp_path, name, FAILING.format(
        what="return slowly(logits, labels) + (logits - logits).sum().sqrt()"
    ))  # fmt: skip
    one = Run(folder)
    with pytest.raises(TaskError) as caught:
        one.go(task=name, algorithm=algorithm, sync_every=1, checkpoint_every=1, num_steps=12)
    assert caught.value.reason == "the gradient is nan in step 8"
    weights = load_checkpoint(checkpoint_paths(folder / "checkpoints")[-1]).state["model"]
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.long
def test_what_cannot_work_is_told_at_once(folder: Path) -> None:
    one = Run(folder)
    with pytest.raises(ConfigError, match=r"5 groups of 1 proc need more than 1 host with 4 procs"):
        one.go(num_groups=5)
    with pytest.raises(
        LighthouseError, match=r"no lighthouse can be reached at http://127\.0\.0\.1:1"
    ):
        one.go(lighthouse="http://127.0.0.1:1")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LighthouseError, match=f"cannot have port {port} of .* lighthouse_port"):
            one.go(lighthouse_port=port)
    with pytest.raises(TaskError, match="'task' names a module that cannot be found: no_such_task"):
        one.go(task="no_such_task")


@pytest.mark.long
def test_a_full_disk_ends_no_run_that_goes_on(folder: Path) -> None:
    def fill(one: Run) -> None:
        for event in one.events("started"):
            for pid in event["pids"]:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))

    one = Run(folder, at(25, fill))
    with pytest.raises(GroupsError, match=r"step 60: .*too large: .*; the last good one is .*20"):
        one.go(num_steps=60, checkpoint_every=20)
    assert "step 40: [Errno 27] File too large" in one.events("unsaved")[0]["text"]
    assert not one.events("died")
    assert [path.name for path in checkpoint_paths(one.record.checkpoint_dir)] == [
        "step-00000020.pt"
    ]


@pytest.mark.slow
def test_a_group_without_restarts_is_given_up_and_the_last_ends_the_run(folder: Path) -> None:
    one = Run(folder)
    outcome = one.go(num_steps=30, max_restarts=0, chaos="kill@10 group=1")
    check_identical(outcome, num_groups=1)
    assert one.events("given_up")[0]["group"] == 1

    one = Run(folder)
    with pytest.raises(GroupsError, match=r"no group is left.*goes on from .*step-00000030.pt"):
        one.go(num_steps=60, max_restarts=0, chaos="kill@40 group=1; kill@50 group=0")


@pytest.mark.slow
def test_the_others_do_not_wait_for_a_killed_group_to_come_back(folder: Path) -> None:
    one = Run(folder)
    at_most = 20.0  # What waits in a collective would wait as long; a machine is never so slow.
    outcome = one.go(
        num_steps=400, chaos="kill@40 group=1", collective_timeout_seconds=at_most,
        join_timeout_seconds=at_most,
    )  # fmt: skip
    check_identical(outcome)
    (incident,) = outcome.report.incidents
    print(f"killed: detected, restarted, healed, stall: {incident.row()}")
    assert incident.detection_seconds is not None
    assert incident.restart_seconds is not None
    assert 0 < incident.stall_seconds == outcome.report.longest_stall_seconds < at_most
    # What the recipe can do nothing about: the heartbeats that stay out, and the way back.
    allowed = incident.detection_seconds + incident.restart_seconds + 1.0
    assert incident.stall_seconds < allowed + 3.0
    assert one.events("finished")[0]["longest_stall_seconds"] > 0
    # They went on without it, unless it was back before its heartbeats were missed.
    alone = [step for step, values in one.rows if values["participants"] == 1]
    assert alone or incident.restart_seconds < 1.0


@pytest.mark.slow
def test_any_process_may_be_killed_at_any_moment(folder: Path) -> None:
    kill_some(folder, seed=1, num_kills=3)


@pytest.mark.huge
@pytest.mark.timeout(600)
def test_many_processes_may_be_killed_at_any_moment(folder: Path) -> None:
    kill_some(folder, seed=2, num_kills=20)


def kill_some(folder: Path, seed: int, num_kills: int) -> None:
    """A trainer, the lighthouse or the template of all, at random steps; and each at least once."""
    dice = random.Random(seed)
    # A template takes long to come back, with all that it imports.
    victims = ["template", *(["lighthouse", "trainer", "trainer"] * num_kills)][:num_kills]
    dice.shuffle(victims)
    due = sorted(dice.sample(range(20, num_kills * 60), num_kills))

    def on_step(one: Run, step: int) -> None:
        if not due or step < due[0]:
            return
        del due[0]
        victim = victims.pop()
        if victim == "trainer":
            kill(one.pid_of(dice.randrange(2)))
        elif victim == "lighthouse":
            kill(one.lighthouse_pid())
        else:
            kill(psutil.Process(one.lighthouse_pid()).ppid())

    one = Run(folder, on_step)
    outcome = one.go(num_steps=num_kills * 60 + 40, max_restarts=1000, checkpoint_every=25)
    check_identical(outcome)
    assert not victims
    assert outcome.step == num_kills * 60 + 40


@pytest.mark.long
def test_groups_evaluate_together_and_end_where_it_gets_no_better(folder: Path) -> None:
    one = Run(folder)
    keys = {
        "num_steps": LONG, "learning_rate": 0.0, "fingerprint_every": 0, "evaluate_every": 10,
        "extras": Extras(patience=3, keep_best=True),
    }  # fmt: skip
    # What groups save waits until the step is written down, and so is told to stop at once.
    one.on_step = at(23, lambda one: one.record.stop())
    stopped = one.go(**keys, chaos="kill@12 group=1", checkpoint_every=23)
    assert 23 < stopped.step < 30
    assert not one.events("stopped_early")

    again = Run(folder)
    outcome = again.go(**keys)
    check_identical(outcome)
    # The first was the best; what was looked at before the run went on counts as well.
    (early,) = again.events("stopped_early")
    assert outcome.step == early["step"] == 40
    assert "for 3 evaluations" in early["text"]
    best = checkpoint_paths(folder / "checkpoints" / "best")
    assert [load_checkpoint(path).step for path in best] == [10]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    looked = [row["step"] for row in map(json.loads, lines) if "held_out_loss" in row]
    assert looked == [10, 20, stopped.step, 30, 40]


def test_a_task_says_when_groups_are_to_end(folder: Path, tmp_path: Path) -> None:
    write(
        tmp_path,
        "content",
        """
        from slowly import compute_loss

        def should_stop(history):
            return "that will do" if len(history) > 1 else False
        """,
    )
    one = Run(folder)
    outcome = one.go(task="content", num_steps=LONG, evaluate_every=5)
    check_identical(outcome)
    assert outcome.step == 10
    assert [event["text"] for event in one.events("stopped_early")] == ["that will do"]
    assert set(outcome.held_out) == {"loss", "accuracy"}
