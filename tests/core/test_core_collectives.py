from __future__ import annotations

from monarch.core.collectives import Collective, mismatches


def one(seq: int, op: str = "all_reduce", sizes: str = "[9]", *, done: bool = True) -> Collective:
    return Collective("dp", seq, op, sizes, "Float", done, f"train.py:{seq}")


def test_a_rank_that_skipped_one_and_a_rank_in_another_are_both_named() -> None:
    """The study's case: rank 0 in all_reduce, rank 2 in broadcast, rank 1 not come."""
    same = [one(seq) for seq in (201, 202, 203)]
    (found,) = mismatches(
        {
            0: [*same, one(204, done=False)],
            1: same,
            2: [*same, one(204, "broadcast", "[7]", done=False)],
        }
    )
    assert (found.group, found.seq) == ("dp", 204)
    assert found.by_kind == {"all_reduce [9] Float": [0], "broadcast [7] Float": [2]}
    assert list(found.missing) == [1]
    assert found.text == (
        "group dp, collective #204: rank 0 in all_reduce [9] Float at train.py:204; "
        "rank 2 in broadcast [7] Float at train.py:204; "
        "rank 1 has not come (last: #203 all_reduce)"
    )


def test_other_shapes_do_not_match_where_they_have_to() -> None:
    (found,) = mismatches({0: [one(1, sizes="[512]")], 1: [one(1, sizes="[511]")]})
    assert sorted(found.by_kind) == ["all_reduce [511] Float", "all_reduce [512] Float"]
    uneven = {0: [one(1, "alltoall", "[1]")], 1: [one(1, "alltoall", "[2]")]}
    assert mismatches(uneven) == []


def test_what_is_under_way_and_matches_is_no_mismatch() -> None:
    assert mismatches({0: [one(1), one(2, done=False)], 1: [one(1), one(2, done=False)]}) == []


def test_a_rank_that_is_behind_with_nobody_waiting_is_no_mismatch() -> None:
    assert mismatches({0: [one(1), one(2)], 1: [one(1)]}) == []


def test_what_a_rank_has_forgotten_is_not_missed() -> None:
    long = [one(seq) for seq in range(1, 50)]
    assert mismatches({0: long, 1: long[30:]}) == []
    late = {0: [*long, one(50, done=False)], 1: long[30:]}
    assert mismatches(late)[0].seq == 50


def test_each_group_is_looked_at_by_itself() -> None:
    def other(seq: int, *, done: bool) -> Collective:
        return one(seq, done=done)._replace(group="tp")

    found = mismatches(
        {0: [one(1), other(5, done=False)], 1: [one(1), other(4, done=True)], 2: [one(1)]}
    )
    assert found == [] or [mismatch.group for mismatch in found] == ["tp"]
    found = mismatches({0: [other(4, done=True), other(5, done=False)], 1: [other(4, done=True)]})
    assert [(mismatch.group, list(mismatch.missing)) for mismatch in found] == [("tp", [1])]
