"""What a run knows of its code, and of code that fails."""

from __future__ import annotations

import math

import pytest

from monarch.config import configured
from monarch.runs.record.edits import Edits, Failure


def fails(edits: Edits, generation: int) -> Failure:
    return Failure(
        "step 9", "NameError", generation, edits.good_before("step", generation),
        is_first=edits.is_new("step", generation), older=edits.older(generation),
    )  # fmt: skip


def ran(*generations: int) -> Edits:
    edits = Edits("rollback")
    for generation in generations:
        edits.went_well("step", generation, 0.1)
    return edits


def test_code_is_edited_as_long_as_it_is_newer_than_what_the_run_began_with() -> None:
    edits = ran(3)
    assert not edits.is_edited(3)
    assert edits.is_edited(4)
    edits.went_well("step", 4, 0.1)
    assert not edits.is_new("step", 4)
    assert edits.is_edited(4), "a branch of it may run for the first time later"
    assert edits.is_new("evaluate", 4)
    assert not Edits().is_edited(4), "nothing has run yet"


def test_code_that_is_saved_while_the_run_starts_is_edited() -> None:
    edits = Edits("hold")
    edits.begin(3)
    edits.begin(5)  # Its next attempt, which is the same run.
    assert not edits.is_edited(3)
    assert edits.is_edited(4)
    assert edits.is_new("setup", 4)
    assert edits.good_before("setup", 4) == 3, "what it began with"
    assert not edits.has_gone_well("setup")
    assert edits.good_before("setup", 3) == 3, "there is nothing to go back to"
    edits.went_well("setup", 4, 0.1)
    assert edits.is_edited(4)
    assert not edits.is_new("setup", 4)


def test_the_first_call_of_all_may_take_long_unless_a_mend_waits_for_its_end() -> None:
    edits = Edits("hold")
    edits.begin(3)
    with configured(edit_patience_seconds=20.0):
        first = edits.patience("step", 4, 300.0)
        assert (first.told, first.stuck, first.most) == (20.0, 300.0, 1500.0)
        assert edits.patience("step", 4, 300.0, mend_waits=True).hard == 20.0
        assert edits.patience("step", 3, 300.0, mend_waits=True).hard == math.inf


def test_it_goes_back_to_the_newest_that_is_older_and_further_if_that_fails_too() -> None:
    edits = ran(1, 2, 4)
    assert edits.way_back(fails(edits, 5)) == 4, "on trial"
    edits.went_well("step", 5, 0.1)
    assert edits.way_back(fails(edits, 5)) == 4, "later"
    edits.origins[6] = 4
    assert edits.way_back(fails(edits, 6)) == 2, "what it went back to fails as well"
    edits.went_well("step", 6, 0.1)
    assert edits.way_back(fails(edits, 6)) == 2
    edits.origins[7] = 2
    assert edits.way_back(fails(edits, 7)) == 1
    edits.origins[8] = 1
    assert edits.way_back(fails(edits, 8)) is None, "so it is not the edits' fault"


def test_what_dies_on_new_code_may_be_chance_once() -> None:
    edits = ran(1)
    assert not edits.is_lost_again("step", "step 5", 1)
    assert not edits.is_lost_again("step", "step 5", 1), "nobody has edited anything"
    assert not edits.is_lost_again("step", "step 5", 2)
    assert edits.is_lost_again("evaluate", "the evaluation", 2), "on trial, wherever it is"
    edits.went_well("step", 2, 0.1)
    assert not edits.is_lost_again("step", "step 80", 2)
    assert not edits.is_lost_again("step", "step 90", 2), "later, steps have nothing in common"
    assert edits.is_lost_again("step", "step 80", 2)


@pytest.mark.parametrize(
    ("seconds", "told", "with_mend"), [(0.01, 30.0, 2.0), (2.0, 30.0, 20.0), (40.0, 400.0, 400.0)]
)
def test_new_code_has_its_time_and_less_of_it_where_a_mend_waits(
    seconds: float, told: float, with_mend: float
) -> None:
    edits = Edits("hold")
    with configured(edit_patience_seconds=30.0):
        edits.went_well("step", 1, seconds)
        assert edits.patience("step", 1, 120.0).stuck == max(120.0, 10 * seconds)
        new = edits.patience("step", 2, 120.0)
        assert (new.told, new.stuck, new.most) == (told, 4 * told, 20 * told)
        assert new.usual == seconds
        assert edits.patience("step", 2, 120.0, mend_waits=True).hard == with_mend


def test_each_kind_of_call_is_measured_by_its_own_history() -> None:
    edits = Edits("hold")
    edits.begin(1)
    edits.went_well("step", 1, 100.0)  # the first in these processes, which compiled
    for _ in range(5):
        edits.went_well("step", 1, 0.5)
    edits.went_well("evaluate", 1, 20.0)
    assert edits.patience("step", 1, 9.0).stuck == 9.0, "no first call, and so as the others"
    assert edits.patience("step", 2, 9.0).told == 300.0, "a first call, and so as the first"
    assert edits.patience("step", 2, 9.0).usual == 0.5
    assert edits.patience("evaluate", 2, 9.0).told == 200.0
    edits.begin(1)  # new processes
    assert edits.patience("step", 1, 9.0).stuck == 300.0


def test_what_hangs_is_named_once() -> None:
    hang = Failure("step 1", "step 1 has not ended within 30 s: ranks 0, 1 hang", 3, 2)
    assert hang.first_line == (
        "step 1 failed on generation 3: has not ended within 30 s: ranks 0, 1 hang"
    )
