"""What `monarch run titan --plan` says of models that are never built."""

from __future__ import annotations

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import ConfigError, resolve_config
from monarch_recipes.titan.config import TitanConfig
from monarch_recipes.titan.planning import Dimension, build_plan
from monarch_recipes.titan.versions import titan
from tests.recipes.titan_support import IS_0_3

EIGHT = "config=llama3_8b" if IS_0_3 else "model.flavor=8B"


def config(*overrides: str) -> TitanConfig:
    return resolve_config(TitanConfig, "", None, overrides).config


@pytest.mark.slow
def test_eight_billion_parameters_on_128_ranks() -> None:
    plan = build_plan(
        config(EIGHT, "parallelism.tensor_parallel_degree=8", "training.local_batch_size=8"), 16, 8
    )
    assert plan.num_parameters == 8_030_261_248
    assert plan.parameter_bytes == pytest.approx(8_030_261_248 * 4 / 128, rel=0.01)
    assert plan.optimizer_bytes == 2 * plan.parameter_bytes
    dimensions = {dimension.name: dimension.ranks for dimension in plan.dimensions}
    assert dimensions == {"fsdp": tuple(range(0, 128, 8)), "tp": tuple(range(8))}
    assert plan.tokens_per_step == 16 * 8 * plan.seq_len
    rows = plan.rows()
    assert rows["tp"] == "8 ranks, within a host: rank 0 is with 0 to 7"
    assert rows["fsdp"] == "16 ranks, across 16 hosts: rank 0 is with 0, 8, 16, ..."
    assert rows["parameters"] == "8,030,261,248"


def test_an_unknown_flavor_is_told_with_those_there_are() -> None:
    if IS_0_3:
        with pytest.raises(ConfigError, match=r"'config' = 'llama3_9b': .* not found .*llama3_8b"):
            config("config=llama3_9b")
    else:
        with pytest.raises(ConfigError, match=r"'9B' is none of llama3's: .*8B"):
            titan.look_up_model(config("model.flavor=9B"))


def test_degrees_that_do_not_multiply_need_no_process() -> None:
    with pytest.raises(ConfigError, match="needs 96 ranks, and there are 128 procs"):
        build_plan(
            config(
                "parallelism.data_parallel_shard_degree=12",
                "parallelism.tensor_parallel_degree=8",
            ),
            16,
            8,
        )


def test_the_last_rank_of_a_small_dimension_is_named() -> None:
    assert Dimension("tp", (0, 1)).text(1) == "2 ranks, across 2 hosts: rank 0 is with 0, 1"
