"""What follows from holds: how long clocks stood, what is told, who is the odd one out."""

from __future__ import annotations

import msgspec

from monarch.core.grouping import group, table
from monarch.core.holds import HeldTime, begun, named
from monarch.wire.hold import HoldNote

HOLD = HoldNote(
    id="a/1", actor="ddp", rank=0, labels=("gpus",), sizes=(8,), mesh="m", proc="p", host="h",
    pid=1, method="step", reason="breakpoint()", file="/w/train.py", function="Trainer.step",
    line=42, since=0.0,
)  # fmt: skip


def _rank(rank: int, **changes: object) -> HoldNote:
    return msgspec.structs.replace(HOLD, id=f"a/{rank}", rank=rank, **changes)


def test_time_is_counted_once_however_many_are_held() -> None:
    time = HeldTime()
    time.hold(True, 10.0)
    time.hold(True, 12.0)
    assert time.seconds(15.0) == 5.0
    time.hold(False, 16.0)
    time.hold(False, 17.0)
    assert time.seconds(100.0) == 6.0
    time.hold(True, 200.0)
    assert time.is_held
    assert time.seconds(201.0) == 7.0


def test_ranks_that_stand_at_one_place_are_one_sentence() -> None:
    assert begun([_rank(3)]) == [
        "ddp 3 is held at breakpoint(), train.py:42 in Trainer.step. Calls to it wait, and "
        "time limits are paused; `monarch debug` opens it."
    ]
    told = begun([_rank(0), _rank(1), _rank(7), _rank(2, line=50)])
    assert [text.partition(" in ")[0] for text in told] == [
        "ddp 0-1,7 are held at breakpoint(), train.py:42",
        "ddp 2 is held at breakpoint(), train.py:50",
    ]
    assert begun([_rank(2, reason="error", error="ValueError: no")])[0].startswith(
        "ddp 2 is held at an error (ValueError: no), train.py:42 in Trainer.step."
    )
    assert named([_rank(0), _rank(1), _rank(2, actor="loader")]) == "ddp 0-1 and loader 2"


def test_the_odd_one_is_marked_where_most_agree() -> None:
    shapes = dict.fromkeys(range(7), "torch.Size([512, 64])") | {7: "torch.Size([511, 64])"}
    assert table(group(shapes)) == [
        "    ranks 0-6   torch.Size([512, 64])",
        "    rank 7      torch.Size([511, 64])      <- odd one out",
    ]


def test_nobody_is_odd_without_a_majority() -> None:
    assert not any(one.is_odd for one in group({0: "a", 1: "b"}))
    assert not any(one.is_odd for one in group({0: "a", 1: "b", 2: "c"}))
    assert not any(one.is_odd for one in group(dict.fromkeys(range(4), "a")))
    assert group({}) == []
