"""Whether other threads ran meanwhile: what a reload goes by to leave their doings alone."""

from __future__ import annotations

import os
import threading
import time
import types

import pytest

from monarch_reload import thread_switches
from monarch_reload.thread_switches import Turns, longer_turns


def test_who_ran_while_we_let_go_for_a_moment_is_noticed() -> None:
    """On another processor, where that takes no switch of ours."""
    stop = threading.Event()
    done = [0] * 3

    def work(place: int) -> None:
        pause = threading.Event()
        while not stop.is_set():
            done[place] += 1
            pause.wait(0.0001)

    workers = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for worker in workers:
        worker.start()
    turns, seen, deadline = Turns(), 0, time.monotonic() + 20
    try:
        with longer_turns():
            while seen < 300 and time.monotonic() < deadline:
                began, before = turns.moment(), list(done)
                os.stat(".")  # lets go of Python
                if done != before:
                    seen += 1
                    assert not turns.undisturbed_since(began, 0.0)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert seen


def test_what_was_fresh_a_moment_ago_is_not_freshened(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    clock = types.SimpleNamespace(perf_counter=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(thread_switches, "time", clock)
    turns = Turns()
    assert turns.freshen(), "others may have run"
    now += 0.009
    assert not turns.freshen(), "that was a moment ago"
    now += 0.002
    assert turns.freshen()


def test_what_nobody_disturbed_is_told_so() -> None:
    turns = Turns()
    told = [turns.undisturbed_since(turns.moment(), 0.0) for _ in range(50)]
    assert any(told)
