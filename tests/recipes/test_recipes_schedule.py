import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_recipes.schedule import (
    BatchSplit,
    learning_rate_factor,
    split_batch,
)


def test_warm_up_is_linear_and_the_rest_half_a_cosine() -> None:
    factors = [learning_rate_factor(step, 4, 12) for step in range(13)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[8] == pytest.approx(0.5)
    assert factors[12] == 0.0
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_without_warm_up_it_starts_at_one_and_stays_at_zero_after_the_end() -> None:
    assert learning_rate_factor(0, 0, 10) == 1.0
    assert learning_rate_factor(99, 0, 10) == 0.0
    assert learning_rate_factor(0, 0, 0) == 1.0


@given(st.integers(0, 300), st.integers(0, 50), st.integers(0, 200))
def test_the_factor_lies_between_zero_and_one(step: int, warmup: int, num_steps: int) -> None:
    assert 0 <= learning_rate_factor(step, warmup, num_steps) <= 1


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64))
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(
    per_rank: int, world_size: int, largest: int
) -> None:
    split = split_batch(per_rank * world_size, world_size, largest)
    assert split.per_rank == per_rank
    assert split.micro_batch_size <= largest


def test_as_few_micro_batches_as_possible() -> None:
    assert split_batch(128, 2, 64) == BatchSplit(64, 1)
    assert split_batch(128, 1, 64) == BatchSplit(64, 2)
    assert split_batch(96, 2, 32) == BatchSplit(24, 2)
    assert split_batch(14, 2, 4) == BatchSplit(1, 7)


@pytest.mark.parametrize(("batch", "world_size"), [(128, 3), (2, 4)])
def test_ranks_that_cannot_share_evenly(batch: int, world_size: int) -> None:
    with pytest.raises(ValueError, match=f"{batch} cannot be shared evenly by {world_size} ranks"):
        split_batch(batch, world_size, 32)
