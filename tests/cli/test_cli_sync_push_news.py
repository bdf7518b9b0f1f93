"""When a watch tries a push again that nobody has saved anything for."""

from __future__ import annotations

import pytest

from monarch.cli.sync.push_news import PushNews, Retrying
from monarch_sync import HostReport, Refusal, SyncReport

FULL = SyncReport(errors=["host1: the host refused the push: No space left on device (disk)"])
FINE = SyncReport(generation=2, hosts=[HostReport("host1")])


def test_it_is_tried_soon_and_then_ever_more_seldom() -> None:
    retrying = Retrying()
    assert not retrying.is_due(1e9)
    now, pauses = 100.0, []
    for number in range(7):
        assert retrying.pushed(FULL, now) == (number == 0), "told once"
        assert not retrying.is_due(now)
        pause = next(seconds for seconds in range(100) if retrying.is_due(now + seconds))
        pauses.append(pause)
        now += pause
    assert pauses == [2, 4, 8, 16, 30, 30, 30]
    assert not retrying.pushed(FINE, now)
    assert not retrying.is_due(now + 1000)
    assert retrying.pushed(FULL, now), "another one"
    assert retrying.is_due(now + 2)


def test_what_makes_generations_each_time_is_not_tried_for_ever() -> None:
    retrying = Retrying()
    shown = SyncReport(errors=["host1: Input/output error"], was_taken_back=True)
    for now in range(3):
        retrying.pushed(shown, now)
        assert retrying.is_due(1e9)
    retrying.pushed(shown, 3)
    assert not retrying.is_due(1e9), "only a save tries that again"
    retrying.pushed(FINE, 4)
    retrying.pushed(shown, 5)
    assert retrying.is_due(1e9)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (SyncReport(errors=["busy"], refusals=[Refusal("an actor is busy")]), True),
        (SyncReport(hosts=[HostReport("a"), HostReport("b", error="its disk is full")]), True),
        (SyncReport(errors=["x"], refusals=[Refusal("SyntaxError", "a.py", 2)]), False),
        (SyncReport(errors=["x"], refusals=[Refusal("too much", traceback="...")]), False),
        (SyncReport(errors=["x", "full"], refusals=[Refusal("no", "a.py")]), False),
    ],
)
def test_code_waits_for_whoever_edits_it(report: SyncReport, expected: bool) -> None:
    assert Retrying().pushed(report, 0.0) is expected


def test_a_save_that_takes_back_what_was_refused_is_told() -> None:
    news = PushNews()
    host = [HostReport("a")]
    news.pushed(SyncReport(generation=4, hosts=host, changed_files=["a.py"]))
    assert news.fixed == ""
    assert news.pushed(SyncReport(generation=4, errors=["SyntaxError"]))
    assert news.fixed == ""
    news.pushed(SyncReport(generation=4, hosts=host))
    assert news.fixed == "as gen 4: nothing to push"
    news.pushed(SyncReport(generation=4, hosts=host))
    assert news.fixed == "", "once"
    news.pushed(SyncReport(generation=4, errors=["SyntaxError"]))
    assert news.pushed(SyncReport(generation=5, hosts=host, changed_files=["a.py"]))
    assert news.fixed == "fixed"
