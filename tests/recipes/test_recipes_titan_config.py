"""The titan recipe's config: TorchTitan's keys, checked before a process starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import ConfigError, live_keys, load_config, resolve_config, to_toml
from monarch.errors import JobError
from monarch.runs.outline import preload_of
from monarch.runs.recipe import find_recipe
from monarch_recipes.titan import PRELOAD, check
from monarch_recipes.titan.api import check_version
from monarch_recipes.titan.config import Degrees, TitanConfig, from_flags, in_folder
from monarch_recipes.titan.recipe import patience_seconds
from monarch_recipes.titan.tiny import copy_edited, prepare, read_documents
from tests.cli.command_folder import CommandFolder
from tests.support import small_files


def config(*overrides: str) -> TitanConfig:
    return resolve_config(TitanConfig, "", None, overrides).config


def test_a_titan_file_is_read_and_written(tmp_path: Path) -> None:
    loaded = load_config(TitanConfig, prepare(tmp_path), ["training.steps=7"])
    assert loaded.config.training.steps == 7
    assert loaded.config.model.name == "tiny_llama"
    assert loaded.origins["optimizer.lr"].text.startswith(f"{tmp_path}/titan.toml:")
    assert resolve_config(TitanConfig, to_toml(loaded.config)).config == loaded.config


def test_flags_give_what_the_file_gives(tmp_path: Path) -> None:
    path = prepare(tmp_path)
    flags = ["--job.config_file", str(path), "--training.steps", "7", "--model.flavor=test"]
    assert from_flags(flags) == load_config(
        TitanConfig, path, ["training.steps=7", "model.flavor=test"]
    ).config  # fmt: skip


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainin.steps=3", "did you mean 'training.steps'"),
        (
            "parallelism.tensor_paralel_degree=2",
            "did you mean 'parallelism.tensor_parallel_degree'",
        ),
        ("training.steps=many", "expects an integer"),
        ("activation_checkpoint.mode=som", "one of 'selective', 'full'"),
        ("checkpoint.interval=0", "'checkpoint.interval' must be at least 1"),
        ("metrics.log_freq=0", "'metrics.log_freq' must be at least 1"),
        ("validation.freq=0", "'validation.freq' must be at least 1"),
        ("validation.steps=0", r"'validation.steps' must be at least 1 \(or -1"),
        ("fault_tolerance.max_restarts=-1", "'fault_tolerance.max_restarts' must be at least 0"),
        (
            "fault_tolerance.save_before_edits=true",
            "is gone: a step .* Take the key out",
        ),
    ],
)
def test_a_mistake_in_an_override(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config(override)


def test_a_mistake_in_a_file_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "titan.toml"
    path.write_text("[training]\nstepss = 3\n")
    with pytest.raises(ConfigError, match=r"titan.toml:2: unknown key .*'training.steps'"):
        load_config(TitanConfig, path)


def test_a_mistake_in_a_flag_does_not_end_the_program() -> None:
    with pytest.raises(ConfigError, match=r"--training\.steps"):
        from_flags(["--training.stepss", "3"])


def test_a_missing_file_of_flags() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        from_flags(["--job.config_file", "nowhere.toml"])


def test_a_file_given_as_a_key_would_not_be_read() -> None:
    with pytest.raises(ConfigError, match=r"--config titan\.toml"):
        check(config("job.config_file=titan.toml"), 1, 2)


@pytest.mark.parametrize(
    ("overrides", "num_ranks", "degrees"),
    [
        ([], 4, Degrees(1, 1, 4, 1, 1)),
        (["parallelism.tensor_parallel_degree=2"], 8, Degrees(1, 1, 4, 1, 2)),
        (["parallelism.data_parallel_replicate_degree=2"], 2, Degrees(1, 2, 1, 1, 1)),
    ],
)
def test_fsdp_takes_the_ranks_that_are_left(
    overrides: list[str], num_ranks: int, degrees: Degrees
) -> None:
    assert Degrees.of(config(*overrides), num_ranks) == degrees


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["parallelism.tensor_parallel_degree=4"], "needs 4 ranks, and there are 2 procs"),
        (["parallelism.data_parallel_shard_degree=3"], "needs 3 ranks, and there are 2 procs"),
        (["parallelism.data_parallel_shard_degree=1"], "needs 1 ranks, and there are 2 procs"),
        (["parallelism.pipeline_parallel_degree=0"], "must be at least 1"),
        (["training.global_batch_size=7"], "no multiple of"),
        (["training.seq_len=33"], "must be a multiple of 2"),
        (["fault_tolerance.enable=true"], "TorchTitan's Trainer has no part in TorchFT"),
    ],
)
def test_degrees_and_batches_that_do_not_fit(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(config(*overrides), 1, 2)


def test_ddp_goes_with_fsdp_and_with_nothing_else() -> None:
    ddp = "parallelism.data_parallel_replicate_degree=2"
    with pytest.raises(ConfigError, match="no DDP together with tensor or pipeline"):
        check(config(ddp, "parallelism.tensor_parallel_degree=2"), 1, 4)
    with pytest.raises(ConfigError, match="no DDP together with tensor or pipeline"):
        check(config(ddp, "parallelism.pipeline_parallel_degree=2"), 2, 2)
    check(config(ddp), 1, 4)
    check(config(ddp, "parallelism.tensor_parallel_degree=2"), 1, 8)


@pytest.mark.parametrize(
    ("step", "seconds_of_last", "patience"),
    [
        (1, None, 300),  # what it starts with takes longer
        (2, 1.0, 100),
        (2, 60.0, 300),  # it took a minute, and may again
        (10, 1.0, 100),  # the save that follows is waited for by itself
        (15, 1.0, 300),  # validates
        (18, 1.0, 300),  # the last, which validates
    ],
)
def test_how_long_a_step_may_take(
    step: int, seconds_of_last: float | None, patience: float
) -> None:
    wanted = config(
        "checkpoint.enable=true", "checkpoint.interval=10", "training.steps=18",
        "validation.enable=true", "validation.freq=15",
    )  # fmt: skip
    assert patience_seconds(wanted, step, seconds_of_last) == patience


def test_what_may_change_while_it_trains() -> None:
    assert {"optimizer.lr", "training.max_norm", "checkpoint.interval"} <= {*live_keys(TitanConfig)}


def test_outputs_lie_in_the_runs_folder_unless_said_otherwise(tmp_path: Path) -> None:
    placed = in_folder(config(), tmp_path)
    assert (placed.job.dump_folder, placed.checkpoint.folder) == (
        str(tmp_path),
        "checkpoints/titan",
    )
    assert in_folder(config("job.dump_folder=/data"), tmp_path).job.dump_folder == "/data"


@pytest.mark.parametrize("version", ["0.3.0", "0.1.0"])
def test_another_torchtitan_is_refused_with_the_pin(version: str) -> None:
    with pytest.raises(JobError, match=rf"torchtitan {version} .* pip install torchtitan==0.2.2"):
        check_version(version)


@pytest.mark.parametrize(("recipe", "extra"), [("titan", "titan"), ("ddp", "train")])
def test_a_recipe_without_its_packages_says_what_to_install(
    recipe: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="torch")

    monkeypatch.setattr("monarch.runs.recipe.importlib.import_module", missing)
    with pytest.raises(JobError, match=rf"needs torch, .* pip install 'monarch-loop\[{extra}\]'"):
        find_recipe(recipe)


def test_what_is_prepared_is_made_again_but_for_what_may_be_edited(tmp_path: Path) -> None:
    path = prepare(tmp_path)
    tokenizer = (tmp_path / "tokenizer/tokenizer.json").read_bytes()
    path.write_text("# mine\n")
    (tmp_path / "data/train/documents.jsonl").unlink()
    prepare(tmp_path)
    assert path.read_text() == "# mine\n"
    assert (tmp_path / "tokenizer/tokenizer.json").read_bytes() == tokenizer
    lines = (tmp_path / "data/train/documents.jsonl").read_text().splitlines()
    held_out = (tmp_path / "data/valid/documents.jsonl").read_text().splitlines()
    assert len(lines) + len(held_out) == len(read_documents())
    assert not {*lines} & {*held_out}


def test_the_documentation_lists_the_keys_that_may_change() -> None:
    text = (Path(__file__).parents[2] / "docs/titan.md").read_text()
    for key in live_keys(TitanConfig):
        assert f"`{key}`" in text


def test_what_a_full_disk_cut_short_is_made_again(tmp_path: Path) -> None:
    with small_files(200), pytest.raises(OSError, match="File too large"):
        copy_edited(tmp_path)
    copy_edited(tmp_path)
    assert load_config(TitanConfig, tmp_path / "titan.toml").config.training.steps > 0


def test_a_copy_of_the_recipe_is_whole_and_keeps_the_preload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CommandFolder(tmp_path).here(monkeypatch, "recipe", "cp", "titan", "copy_of_titan")
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = find_recipe(str(tmp_path / "copy_of_titan"))
    assert recipe.config_class.__module__ == "copy_of_titan.config"
    ours = {name for name in sys.modules if name.startswith("copy_of_titan.")}
    copied = {f"copy_of_titan.{path.stem}" for path in recipe.path.glob("[a-z]*.py")}
    assert ours == copied
    for name in ours:
        members = vars(sys.modules[name]).values()
        homes = {getattr(each, "__module__", "") or "" for each in members}
        assert not [home for home in homes if home.startswith("monarch_recipes.titan")]
    assert preload_of("titan") == preload_of(str(tmp_path / "copy_of_titan")) == PRELOAD
