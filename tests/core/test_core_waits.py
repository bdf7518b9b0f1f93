from __future__ import annotations

from monarch.core.waits import Member, WaitEdge, ends, in_lines, rings


def edge(waiter: str, awaited: str, method: str = "step", seconds: float = 1.0) -> WaitEdge:
    def member(text: str) -> Member:
        name, _, rank = text.partition(" ")
        return Member(name, int(rank) if rank else -1)

    return WaitEdge(member(waiter), member(awaited), method, seconds)


def test_those_that_wait_alike_are_told_together() -> None:
    waits = [edge(f"ddp {rank}", "data 3", "read", rank) for rank in (4, 5, 6, 9)]
    waits += [edge("client", f"ddp {rank}", seconds=12.0) for rank in range(10)]
    assert in_lines(waits) == [
        "client waits 12.0 s for ddp 0-9 (step)",
        "ddp 4-6, 9 wait 9.0 s for data 3 (read)",
    ]
    assert [str(one) for one in ends(waits)] == [
        "data 3", "ddp 0", "ddp 1", "ddp 2", "ddp 3", "ddp 7", "ddp 8",
    ]  # fmt: skip


def test_a_ring_is_found_once_wherever_it_is_entered() -> None:
    waits = [edge("x 0", "a 0"), edge("a 0", "b 0"), edge("b 0", "c 0"), edge("c 0", "a 0")]
    assert [[str(one) for one in ring] for ring in rings(waits)] == [["a 0", "b 0", "c 0"]]
    assert rings(reversed(waits)) == rings(waits)


def test_who_waits_for_itself_is_a_ring_and_a_chain_is_none() -> None:
    assert [[str(one) for one in ring] for ring in rings([edge("a 1", "a 1")])] == [["a 1"]]
    assert rings([edge("a 0", "b 0"), edge("b 0", "c 0"), edge("a 0", "c 0")]) == []


def test_two_rings_that_share_nothing_are_two() -> None:
    waits = [edge("a 0", "b 0"), edge("b 0", "a 0"), edge("c 0", "d 0"), edge("d 0", "c 0")]
    assert len(rings(waits)) == 2
