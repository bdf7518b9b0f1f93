"""Slow or stuck: what is concluded from looks at ranks. No process, and no time that passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.runs.record.slowness import Patience, RankLook, Slowness, told_as_slow
from monarch.runs.recover.witness import look_here
from tests.support import wait_for

LIMITS = Patience.on_trial(30.0, usual=2.0)
Look = Callable[[float], list[RankLook]]


def looked_at(look: Look, seconds: float = 700.0, num_ranks: int = 2) -> Slowness:
    slowness = Slowness(num_ranks, 0.0)
    for at in range(4, int(seconds) + 1, 4):
        slowness.seen(float(at), look(float(at)))
    return slowness


def stuck_after(look: Look, limits: Patience = LIMITS) -> float | None:
    """The seconds after which a call counts as stuck."""
    slowness = Slowness(2, 0.0)
    for at in range(4, 2000, 4):
        slowness.seen(float(at), look(float(at)))
        if slowness.is_stuck(float(at), limits):
            return float(at)
    return None


def test_ranks_that_do_nothing_are_stuck_after_four_times_the_patience() -> None:
    asleep = [RankLook(0, place=1), RankLook(1, place=1)]
    assert stuck_after(lambda at: asleep) == 120.0
    assert stuck_after(lambda at: asleep[:1]) == 120.0, "one cannot be looked at"
    waited_for = [RankLook(0, is_waiting=True, busy_seconds=0.0), RankLook(1, place=1)]
    assert stuck_after(lambda at: waited_for) == 120.0


@pytest.mark.parametrize(
    "look",
    [
        lambda at: [RankLook(0), RankLook(1, place=int(at))],
        lambda at: [RankLook(0), RankLook(1, busy_seconds=at)],
        lambda at: [RankLook(0), RankLook(1, ready_seconds=at)],
        lambda at: [RankLook(0), RankLook(1, num_bytes=int(at))],
        lambda at: [RankLook(0, is_waiting=True), RankLook(1, busy_seconds=at)],
        lambda at: [RankLook(0, is_idle=True), RankLook(1, busy_seconds=at)],
    ],
    ids=["frames", "processor", "other processes have it", "bytes", "one of two", "the last"],
)
def test_what_makes_progress_is_not_stuck(look: Look) -> None:
    assert stuck_after(look) is None
    slowness = looked_at(look)
    assert not slowness.is_over(599.0, LIMITS)
    assert slowness.is_over(600.0, LIMITS), "a loop without end ends some time"


def test_who_only_waits_makes_no_progress_by_that() -> None:
    """As NCCL does, which uses a processor for it."""
    look = [RankLook(0, is_waiting=True), RankLook(1)]
    assert stuck_after(lambda at: [RankLook(0, is_waiting=True, busy_seconds=at), look[1]]) == 120.0


def test_threads_that_wake_up_to_look_make_no_progress() -> None:
    assert stuck_after(lambda at: [RankLook(0, busy_seconds=0.002 * at), RankLook(1)]) == 120.0


def test_what_was_busy_once_is_stuck_from_then_on() -> None:
    assert stuck_after(lambda at: [RankLook(0, busy_seconds=min(at, 40.0)), RankLook(1)]) == 160.0


def test_collectives_that_differ_are_stuck_after_the_patience() -> None:
    def differ(at: float) -> list[RankLook]:
        return [RankLook(rank, is_waiting=True, spot=rank, busy_seconds=at) for rank in (0, 1)]

    assert stuck_after(differ) == 32.0
    same = [RankLook(rank, is_waiting=True, spot=7) for rank in (0, 1)]
    assert stuck_after(lambda at: same) == 120.0
    assert stuck_after(lambda at: [RankLook(0, is_waiting=True, spot=1)]) == 120.0, "alone in it"


def test_time_that_compiling_takes_on_the_processor_does_not_count() -> None:
    def compiles(at: float) -> list[RankLook]:
        return [RankLook(0, busy_seconds=at, is_compiling=True), RankLook(1, is_waiting=True)]

    slowness = looked_at(compiles, 5000.0)
    assert not slowness.is_over(5000.0, LIMITS)
    assert not slowness.is_over(5000.0, Patience.of_proved_code(1.0))
    assert not looked_at(compiles).is_over(700.0, Patience.of_proved_code(100.0))
    # A lock of an import that nobody lets go of is no import.
    waits = [RankLook(0, is_compiling=True, place=1), RankLook(1, is_waiting=True)]
    assert stuck_after(lambda at: waits) == 124.0


def test_where_ranks_are_is_told() -> None:
    look = RankLook(0, "`forward`, task.py:31")
    both = [look, RankLook(1, look.where)]
    told = told_as_slow("step 41", 38.0, LIMITS, both, 2)
    assert told == (
        "step 41 takes 38.0 s so far, usual 2.0 s: all ranks are in `forward`, task.py:31"
    )
    mixed = [look, RankLook(1, "`loss`, task.py:9", is_waiting=True), RankLook(2, is_idle=True)]
    assert told_as_slow("step 41", 38.0, Patience.unseen(9.0), mixed, 4) == (
        "step 41 takes 38.0 s so far: rank 0 is in `forward`, task.py:31, rank 1 waits for others, "
        "in `loss`, task.py:9, rank 2 has answered, rank 3 gives no answer: stopped, or in C with "
        "the GIL"
    )


CODE = """
def waits(is_there, done):
    is_there.set()
    done.wait()


def works(is_there, done):
    is_there.set()
    while not done.is_set():
        sum(range(1000))


def record_function(is_there, done):
    works(is_there, done)
"""


@pytest.mark.parametrize(
    ("path", "function", "compiles", "is_stuck"),
    [
        ("/home/me/task.py", "works", False, False),
        ("/home/me/task.py", "waits", False, True),
        ("/x/site-packages/torch/_dynamo/convert_frame.py", "works", True, False),
        ("/x/site-packages/torch/_inductor/output_code.py", "works", False, False),
        ("/x/site-packages/triton/compiler/compiler.py", "works", True, False),
        ("/x/site-packages/torch/_inductor/cudagraph_trees.py", "record_function", True, False),
        ("/x/site-packages/torch/_inductor/cudagraph_trees.py", "works", False, False),
        ("<frozen importlib._bootstrap>", "works", True, False),
    ],
)
def test_a_look_at_a_real_thread(path: str, function: str, compiles: bool, is_stuck: bool) -> None:
    inner, outer = types.ModuleType("inner"), types.ModuleType("outer")
    exec(compile(CODE, path, "exec"), inner.__dict__)
    text = "def step(*given):\n    function(*given)\n"
    exec(compile(text, "/home/me/outer.py", "exec"), outer.__dict__)
    outer.__dict__["function"] = getattr(inner, function)
    is_there, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=outer.step, args=(is_there, done), name="actor trainer 0")
    looks: list[RankLook] = []

    def has_moved() -> bool:
        looks.append(look_here(0))
        busy = looks[-1].busy_seconds - looks[0].busy_seconds
        return busy > 0.1 and len({one.place for one in looks}) > 1

    thread.start()
    try:
        assert is_there.wait(30)
        if is_stuck:
            wait_for(lambda: look_here(0).place == look_here(0).place)
            first, second = look_here(0), look_here(0)
            assert first.place == second.place
        else:
            wait_for(has_moved, 60.0)
            first = looks[-1]
    finally:
        done.set()
        thread.join()
    assert first.is_compiling == compiles
    assert not first.is_idle
    assert not first.is_waiting
    assert "/home/me/" in first.where


def test_what_a_thread_of_torch_compiles_counts_too() -> None:
    """A backward pass is compiled when it first runs, on a thread of its own: all that the thread
    of the user shows is that it waits for it."""
    text = "def backward(is_there, done):\n    compile_fx(is_there, done)\n"
    module = types.ModuleType("inner")
    exec(compile(CODE.replace("works", "compile_fx"), "/x/torch/_inductor/compile_fx.py", "exec"),
         module.__dict__)  # fmt: skip
    exec(compile(text, "/x/torch/_functorch/runtime_wrappers.py", "exec"), module.__dict__)
    is_there, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=module.backward, args=(is_there, done), name="Dummy-3")
    thread.start()
    try:
        assert is_there.wait(30)
        assert look_here(0).is_compiling
    finally:
        done.set()
        thread.join()
    assert not look_here(0).is_compiling


def test_a_compiler_below_the_process_counts(tmp_path: Path) -> None:
    """Inductor has workers of its own, and these g++; of its kind is all that is named so."""
    shutil.copy(sys.executable, tmp_path / "cc1plus")  # a real process of that name
    compiler = [os.fspath(tmp_path / "cc1plus"), "-S", "-c", "import sys; sys.stdin.read()"]
    run = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", run, *compiler],
        stdin=subprocess.PIPE, env={**os.environ, "PYTHONHOME": sys.base_prefix},
    )  # fmt: skip
    try:
        wait_for(lambda: look_here(0).is_compiling, 60.0, what="the worker's compiler")
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait(60)
    wait_for(lambda: not look_here(0).is_compiling, 60.0, what="its end")


def _in_backward(rank: int, at: float, *, computes: bool = True) -> RankLook:
    return RankLook(
        rank, spot=rank, place=rank, is_waiting=True, may_compute=True,
        busy_seconds=at if computes else 0.0,
    )  # fmt: skip


def test_who_computes_in_a_backward_pass_is_in_no_collective() -> None:
    slowness = looked_at(lambda at: [_in_backward(0, at), _in_backward(1, at)], 200.0)
    assert not slowness.do_not_match
    assert not slowness.is_stuck(200.0, LIMITS)
    # Those that wait in it for each other are.
    waits = looked_at(
        lambda at: [_in_backward(0, at, computes=False), _in_backward(1, at, computes=False)], 200.0
    )
    assert waits.do_not_match
    assert waits.is_stuck(200.0, LIMITS)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_one_rank_is_in_no_collective_that_does_not_match(num_ranks: int) -> None:
    slowness = looked_at(lambda at: [RankLook(0, spot=int(at), is_waiting=True)], 200.0, num_ranks)
    assert not slowness.do_not_match
