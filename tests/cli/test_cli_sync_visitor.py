"""What a visitor of many hosts and procs waits for."""

from __future__ import annotations

import pytest

from monarch.cli.sync import visitor
from monarch.runtime.answers import Outcome
from monarch.runtime.promise import Promise


def test_many_that_are_silent_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would take longer than any test may."""
    monkeypatch.setattr(visitor, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(visitor, "_EACH_SECONDS", 0.0)
    asked: dict[int, Promise[Outcome]] = {number: Promise() for number in range(2_000)}
    asked[0].set(Outcome({"generation": 3}))
    asked[1_999].set(Outcome({"generation": 4}))
    asked[7].set(Outcome({}, error="it is ending"))
    found = visitor._bodies(asked)
    assert {uid: body for uid, body in found.items() if body} == {
        0: {"generation": 3},
        1_999: {"generation": 4},
    }
