"""Environment variables of ranks that run, and of those that start later."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import monarch.actor
from monarch.actor import ProcMesh, this_host
from monarch.net.machine import user_name
from monarch.runtime import process
from monarch.wire.message import EnvSet
from tests.debugger.held_actors import Stepper
from tests.support import wait_for


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may be asked before they are up, on a machine with much else to do."""
    monkeypatch.setattr("monarch.actor.env_report._SECONDS", 60.0)


def test_one_rank_that_differs_is_odd_and_busy_ranks_answer(procs: ProcMesh) -> None:
    procs.spawn("stepper", Stepper).loops.broadcast()
    procs.slice(gpus=3).set_env({"MT_INTERFACE": "ib0"})
    procs.slice(gpus=slice(0, 3)).set_env({"MT_INTERFACE": "eth0", "MT_GONE": "x"})
    procs.set_env({"MT_GONE": None})
    report = procs.env("MT_*")
    assert report.odd == {3: {"MT_INTERFACE": "ib0"}}
    assert report["MT_INTERFACE"] == {0: "eth0", 1: "eth0", 2: "eth0", 3: "ib0"}
    assert str(report).splitlines() == [
        "MT_INTERFACE   eth0   ranks 0-2",
        "               ib0    rank 3    <- odd one out",
    ]
    assert [row.name for row in report.differs] == ["MT_INTERFACE"]


def test_an_endpoint_sees_what_was_set(procs: ProcMesh) -> None:
    procs.set_env({"MT_SEEN": "1"})
    assert procs.env("MT_SEEN")["MT_SEEN"] == dict.fromkeys(range(4), "1")
    assert procs.env("MT_SEEN", at_start=True)["MT_SEEN"] == dict.fromkeys(range(4))


def test_secrets_are_hidden_and_comparable(procs: ProcMesh) -> None:
    procs.set_env({"MT_TOKEN": "sesame"})
    procs.slice(gpus=1).set_env({"MT_TOKEN": "barley"})
    report = procs.env("MT_*")
    assert "sesame" not in str(report)
    assert [one.ranks for one in report.rows[0].values] == [(0, 2, 3), (1,)]


def test_a_user_without_a_name_sets_variables_too(
    procs: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container a user may have a number only."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nameless)
    procs.set_env({"MT_SEEN": "1"})
    assert procs.env("MT_SEEN")["MT_SEEN"] == dict.fromkeys(range(4), "1")
    assert user_name() == f"uid {os.getuid()}"


def test_only_text_is_taken(procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match="takes text"):
        procs.set_env({"MT_NUMBER": 3})  # type: ignore[dict-item]


def test_a_dead_rank_is_told_of(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda fault: None)
    procs.initialized.get(timeout=60)
    agent: Any = process.current()
    pid = next(p.pid for p in agent.host_agent.procs.values() if p.spec.rank == 2)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(agent.host_agent.procs) == 3)
    report = procs.env("PATH")
    assert list(report.ranks) == [0, 1, 3]
    assert "SIGKILL" in report.silent[2]


def test_what_is_set_for_later_is_there_in_procs_that_start_later() -> None:
    node = process.current().node
    order = {"MT_LATER": "5", "HOME": None}
    asked = node.ask(node.address, EnvSet(dict(order), "anna", ()))
    assert asked.wait(60)
    assert asked.value.answer["MT_LATER"].startswith("set by anna ")
    try:
        later = this_host().spawn_procs({"gpus": 2}).env("MT_LATER", "HOME")
        assert later["MT_LATER"] == {0: "5", 1: "5"}
        assert later["HOME"] == {0: None, 1: None}
    finally:
        agent: Any = process.current()
        agent.host_agent._later_env._set.clear()
