"""What the fault-tolerant recipe decides: chaos, restarts, places, fingerprints, the sum of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[ft]'")

from monarch.runs.recover.restarts import Restarts
from monarch_recipes.replicas.chaos import KINDS, ChaosError, InjectedFault, read_chaos
from monarch_recipes.replicas.event_log import FingerprintBook
from monarch_recipes.replicas.messages import TaskError, task_errors
from monarch_recipes.replicas.placement import GroupPlace, place_groups
from monarch_recipes.replicas.recovery import RecoveryBook


def chaos(text: str, seed: int = 0) -> list[InjectedFault]:
    return read_chaos(text, num_steps=100, num_groups=2, procs_per_group=2, seed=seed)


def test_faults_are_read_in_the_order_of_their_steps() -> None:
    faults = chaos("slow@60 seconds=0.5 rank=0 group=1; kill@40 group=0 rank=1 when=commit ;")
    assert faults == [
        InjectedFault("kill", 40, 0, 1, "commit", 2.0),
        InjectedFault("slow", 60, 1, 0, "inside", 0.5),
    ]
    assert str(faults[0]) == "kill@40 group=0 rank=1 when=commit"
    assert str(chaos("lighthouse@9")[0]) == "lighthouse@9"
    assert chaos("") == []


def test_what_is_left_open_is_drawn_by_the_seed() -> None:
    text = "; ".join(f"kill@{step}" for step in range(1, 41))
    assert chaos(text) == chaos(text)
    assert chaos(text) != chaos(text, seed=1)
    assert {(fault.group, fault.rank) for fault in chaos(text)} == {
        (0, 0), (0, 1), (1, 0), (1, 1),
    }  # fmt: skip


def test_random_chaos_has_one_fault_in_every_window() -> None:
    faults = chaos("random every=10 seed=7")
    assert [(fault.step - 1) // 10 for fault in faults] == list(range(10))
    assert faults == chaos("random every=10 seed=7")
    assert faults != chaos("random every=10 seed=8")
    assert {fault.kind for fault in faults} <= set(KINDS)
    assert {fault.kind for fault in chaos("random every=5 kinds=kill,exit")} == {"kill", "exit"}


@pytest.mark.parametrize(
    ("text", "column", "reason", "suggestion"),
    [
        ("kil@40", 1, "there is no fault 'kil'", "kill"),
        ("kill@40;  hung@50", 11, "there is no fault 'hung'", "hang"),
        ("kill@0", 1, "expected kill@STEP, with a step from 1 to 100", None),
        ("kill@101", 1, "expected kill@STEP, with a step from 1 to 100", None),
        ("kill", 1, "expected kill@STEP, with a step from 1 to 100", None),
        ("kill@40 grup=1", 9, "expected one of group=, rank=, when=, seconds=", "group"),
        ("kill@40 group", 9, "expected one of group=, rank=, when=, seconds=", "group"),
        ("kill@40 group=2", 15, "there is no group 2: they count from 0 to 1", None),
        ("kill@40 rank=x", 14, "expected a whole number from 0, got 'x'", None),
        ("kill@40 when=comit", 14, "there is no moment 'comit'", "commit"),
        ("slow@40 seconds=long", 17, "expected a number of seconds, got 'long'", None),
        ("random", 1, "random needs every=, the number of steps that have one fault", None),
        ("random every=0", 14, "expected a whole number from 1, got '0'", None),
        ("random every=9 kinds=kill,slou", 22, "there is no fault 'slou'", "slow"),
    ],
)
def test_a_typo_is_told_with_its_place(
    text: str, column: int, reason: str, suggestion: str | None
) -> None:
    with pytest.raises(ChaosError) as caught:
        chaos(text)
    assert (caught.value.column, caught.value.reason) == (column, reason)
    assert caught.value.suggestion == suggestion
    assert str(caught.value) == f"column {column}: {reason}"


def test_groups_lie_on_one_host_where_they_fit() -> None:
    assert place_groups(2, 1, 1, 2) == [GroupPlace(0, 1, 1, 0), GroupPlace(0, 1, 1, 1)]
    # Over the hosts first, so that the loss of one costs as few as can be.
    assert place_groups(2, 2, 2, 4) == [GroupPlace(0, 1, 2, 0), GroupPlace(1, 1, 2, 0)]
    assert place_groups(3, 2, 2, 4)[2] == GroupPlace(0, 1, 2, 2)
    assert place_groups(2, 4, 4, 2) == [GroupPlace(0, 2, 2, 0), GroupPlace(2, 2, 2, 0)]


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((3, 1, 1, 2), "3 groups of 1 proc need more than 1 host with 2 procs each: there is room"),
        ((2, 4, 3, 2), "2 groups of 4 procs need more than 3 hosts with 2 procs each"),
        ((1, 5, 4, 2), "a group of 5 procs cannot be shared evenly by 3 hosts of 2 procs each"),
    ],
)
def test_groups_that_do_not_fit_are_refused(sizes: tuple[int, int, int, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        place_groups(*sizes)


def test_a_group_that_differs_is_told_with_what_it_differs_in() -> None:
    book = FingerprintBook()
    sums = {"first.weight": 1, "last.bias": 2}
    assert book.add(20, 0, ["a"], [sums]) == {}
    assert book.add(20, 1, ["a"], [sums]) == {}
    (told,) = book.add(20, 2, ["b"], [{**sums, "last.bias": 3}]).values()
    assert told == "it has b at step 20, where group 0 has a, in last.bias"
    (told,) = book.add(20, 3, ["a", "b"], [sums, {**sums, "last.bias": 3}]).values()
    assert told.endswith("rank 1 differs from rank 0 in last.bias")


def test_groups_are_compared_at_the_same_step() -> None:
    book = FingerprintBook()
    assert book.add(20, 0, ["a", "a"]) == {}
    assert book.add(20, 1, ["a", "a"]) == {}
    assert book.agreed_step == 20
    assert book.add(40, 1, ["b"]) == {}
    assert book.add(40, 0, ["c"]) == {0: "it has c at step 40, where group 1 has b"}
    assert book.agreed_step == 20
    assert book.add(60, 1, ["d", "e"]) == {1: "its ranks differ at step 60: d, e"}


def test_the_most_are_right_and_who_is_made_anew_is_forgotten() -> None:
    book = FingerprintBook()
    assert book.add(20, 0, ["x"]) == {}
    assert set(book.add(20, 1, ["y"])) == {1}
    assert set(book.add(20, 2, ["y"])) == {0}
    assert book.reference(20) == 1
    book.forget(0)
    assert book.of(20) == {1: "y", 2: "y"}
    book.roll_back()
    assert book.of(20) == {}


def test_those_who_are_lost_together_are_waited_for_once() -> None:
    book = RecoveryBook(2, now=0.0)
    for step in range(1, 11):
        book.committed("group 0", step, 2, step * 0.1)
    for victim in ("group 0", "group 1", "lighthouse"):
        book.detected(victim, "killed", 10, 1.05)
        book.ready(victim, 1.9)
    for step in range(11, 13):
        for victim in ("group 0", "group 1", "lighthouse"):
            book.committed(victim, step, 2, 1.0 + (step - 10) * 1.1)
    report = book.report(4.0)
    assert report.longest_stall_seconds == pytest.approx(1.1)
    assert report.stalled_seconds == pytest.approx(1.0)


def test_a_group_that_is_to_heal_hangs_only_where_others_go_on() -> None:
    pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'"
    )
    from monarch_recipes.replicas.group import Group
    from monarch_recipes.replicas.groups import Groups

    config = SimpleNamespace(
        step_timeout_seconds=180.0, collective_timeout_seconds=10.0, hang_timeout_seconds=5.0
    )
    place = GroupPlace(0, 1, 1, 0)
    back, other = (Group(number, place, Restarts(5)) for number in (0, 1))
    back.is_training = other.is_training = True
    groups: Any = object.__new__(Groups)
    groups.all, groups._config = [back, other], config
    other.step = 60  # and discards step 61, as long as it has not met the one that is back
    for now in (0.0, 6.0, 12.0):
        assert groups.why_hung(back, 0.0, now, 60) is None
    other.step = 62
    assert groups.why_hung(back, 0.0, 13.0, 60) is None
    assert "gone on without it for 5 s" in str(groups.why_hung(back, 0.0, 18.5, 60))


def test_the_sum_of_a_recovery() -> None:
    book = RecoveryBook(2, now=0.0)
    for step in range(1, 11):
        for group in ("group 0", "group 1"):
            assert book.committed(group, step, 2, step * 0.1) is None
    book.ordered("group 1", 1.0)
    book.detected("group 1", "killed", 10, 1.2)
    book.wasted()
    for step in range(11, 16):
        book.committed("group 0", step, 1, 1.0 + step * 0.1)
    book.ready("group 1", 2.5)
    healed = book.committed("group 1", 16, 2, 2.6)
    assert healed is not None
    row = book.report(3.0).incidents[0].row()
    assert row == {
        "victim": "group 1",
        "cause": "killed",
        "step": 10,
        "detection_seconds": 0.2,
        "restart_seconds": 1.3,
        "heal_seconds": 0.1,
        "stall_seconds": 1.1,
    }
    report = book.report(3.0)
    assert (report.num_batches_committed, report.num_batches_possible) == (27, 33)
    assert report.stalled_seconds == pytest.approx(1.0)
    assert report.data()["batch_share"] == round(27 / 33, 4)
    # 11 steps of both groups and 5 of one take 1.35 s, of the 2.6 s in which they were made.
    assert report.useful_seconds == pytest.approx(1.35)
    assert report.training_seconds == pytest.approx(2.6)
    assert report.data()["goodput"] == pytest.approx(1.35 / 2.6, abs=1e-4)
    assert report.data()["longest_stall_seconds"] == 1.1
    table = report.lines()
    assert table[0].split() == [
        "step", "victim", "detected", "restarted", "healed", "stall", "cause",
    ]  # fmt: skip
    assert table[1].startswith("10    group 1  0.20 s    1.30 s     0.10 s  1.10 s")
    assert table[-2].startswith(
        "goodput 51.9% of the time: 16 steps of 0.100 s when undisturbed, in 2.6 s, of which 1.0 s"
    )
    assert table[-2].endswith("waiting for recoveries, at most 1.10 s for one")
    assert table[-1] == "81.8% of the batches: 27 of 33 were learned from"


def test_a_group_that_dies_again_and_again_costs_time_though_few_batches_are_missed() -> None:
    """Once such a run said 90.1 %, at half of its pace."""
    book, now = RecoveryBook(2, now=0.0), 0.0
    for step in range(1, 201):
        now += 0.1
        if step % 20 == 0:
            book.detected("group 1", "killed", step, now)
            now += 2.0
            book.ready("group 1", now)
        for group in ("group 0", "group 1"):
            book.committed(group, step, 2, now)
    report = book.report(now)
    assert report.batch_share == 1.0
    assert report.usual_step_seconds == pytest.approx(0.1)
    assert report.goodput == pytest.approx(20.0 / 40.0, abs=0.01)


def test_steps_that_are_lost_with_all_groups_are_no_good() -> None:
    book = RecoveryBook(1, now=0.0)
    for step in range(1, 11):
        book.committed("group 0", step, 1, float(step))
    book.detected("group 0", "killed", 10, 10.0)
    book.rolled_back(5)
    book.ready("group 0", 11.0)
    for step in range(6, 11):
        book.committed("group 0", step, 1, 6.0 + step)
    report = book.report(17.0)
    assert (report.num_batches_committed, report.num_batches_possible) == (10, 15)
    assert report.incidents[0].detection_seconds is None, "nobody knows when it began"


def test_a_run_without_a_fault_has_no_table() -> None:
    book = RecoveryBook(2, now=0.0)
    for step in range(1, 4):
        book.committed("group 0", step, 2, step * 0.5)
    assert book.report(2.0).lines() == [
        "goodput 100.0% of the time: 3 steps of 0.500 s when undisturbed, in 1.5 s, of which 0.0 s "
        "were spent waiting for recoveries",
        "100.0% of the batches: 6 of 6 were learned from",
    ]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("num_groups=0", "must be at least 1"),
        ("max_restarts=-1", "must be at least 0"),
        ("lighthouse_port=99999", "must be at least 0 and at most 65535"),
        ("heartbeat_timeout_seconds=0", "must be more than 0"),
        ("join_timeout_seconds=5", "must not be less than collective_timeout_seconds \\(10\\)"),
        ("quorum_timeout_seconds=10", "must be more than join_timeout_seconds"),
        ("algorithm=dilco", "expects one of 'ddp', 'localsgd', 'diloco'.*did you mean 'diloco'"),
        ("chaos=kil@40", "'chaos' column 1: there is no fault 'kil'; did you mean 'kill'\\?"),
        ("chaos=kill@400", "'chaos' column 1: expected kill@STEP, with a step from 1 to 300"),
        ("num_group=2", "unknown key 'num_group'; did you mean 'num_groups'\\?"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(override: str, reason: str) -> None:
    pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'"
    )
    from monarch.config_file import ConfigError, resolve_config
    from monarch_recipes.fault_tolerant import FaultTolerantConfig

    with pytest.raises(ConfigError, match=reason):
        resolve_config(FaultTolerantConfig, "", overrides=[override])


def test_the_shipped_config_holds_every_key_at_its_default() -> None:
    pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'"
    )
    import monarch_recipes
    from monarch.config_file import resolve_config, to_toml
    from monarch.config_file.toml_text import loads
    from monarch_recipes.fault_tolerant import FaultTolerantConfig

    shipped = Path(monarch_recipes.__file__).parent / "configs" / "fault_tolerant.toml"
    text = shipped.read_text()
    assert resolve_config(FaultTolerantConfig, text).config == FaultTolerantConfig()
    assert list(loads(text)) == list(loads(to_toml(FaultTolerantConfig())))


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit("bad"), KeyboardInterrupt("bad")])
def test_what_would_end_the_process_is_the_tasks_fault(error: BaseException) -> None:
    with pytest.raises(TaskError) as caught, task_errors("group 0"):
        raise error
    assert caught.value.reason == f"{type(error).__name__}: bad"
