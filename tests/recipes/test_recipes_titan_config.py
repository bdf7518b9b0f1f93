"""The titan recipe's config: TorchTitan's keys, checked before a process starts."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import ConfigError, live_keys, load_config, resolve_config, to_toml
from monarch.errors import JobError
from monarch.runs.recipe.outline import preload_of
from monarch.runs.recipe.recipe import find_recipe
from monarch_recipes.titan import PRELOAD, check
from monarch_recipes.titan import __file__ as recipe_file
from monarch_recipes.titan.config import Degrees, TitanConfig, from_flags, in_folder, value_at
from monarch_recipes.titan.recipe import patience_seconds
from monarch_recipes.titan.tiny import copy_edited, prepare, read_documents
from monarch_recipes.titan.versions import module_for, titan
from tests.cli.command_folder import CommandFolder
from tests.recipes.held_run import importable
from tests.recipes.titan_support import IS_0_3
from tests.support import small_files

ONLY_0_2 = pytest.mark.skipif(IS_0_3, reason="TorchTitan 0.3 has no such key")
ONLY_0_3 = pytest.mark.skipif(not IS_0_3, reason="TorchTitan 0.2 has no config functions")
VALIDATION = titan.keys.validation


def config(*overrides: str) -> TitanConfig:
    return resolve_config(TitanConfig, "", None, overrides).config


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Where the small Llama is, which the client imports for TorchTitan 0.3."""
    prepare(tmp_path)
    undo = importable(tmp_path)
    yield tmp_path
    undo()


def test_a_titan_file_is_read_and_written(project: Path) -> None:
    loaded = load_config(TitanConfig, project / "titan.toml", ["training.steps=7"])
    tmp_path = project
    assert loaded.config.training.steps == 7
    assert titan.model_text(loaded.config) == "tiny_llama mini"
    assert loaded.origins["optimizer.lr"].text.startswith(f"{tmp_path}/titan.toml:")
    assert resolve_config(TitanConfig, to_toml(loaded.config)).config == loaded.config


@ONLY_0_2
def test_flags_give_what_the_file_gives(tmp_path: Path) -> None:
    path = prepare(tmp_path)
    flags = ["--job.config_file", str(path), "--training.steps", "7", "--model.flavor=test"]
    assert from_flags(flags) == load_config(
        TitanConfig, path, ["training.steps=7", "model.flavor=test"]
    ).config  # fmt: skip


@ONLY_0_3
def test_flags_of_a_config_function_give_what_its_keys_give() -> None:
    flags = ["--module", "llama3", "--config=llama3_debugmodel", "--training.steps", "7"]
    assert from_flags(flags) == config("training.steps=7")


@ONLY_0_3
def test_what_a_config_function_returns_is_taken_and_laid_over(project: Path) -> None:
    """The values that no file and no override gives are the function's."""
    loaded = load_config(TitanConfig, project / "titan.toml", ["optimizer.lr=1e-3"])
    made = loaded.config.trainer_config()
    assert made.optimizer.param_groups[0].optimizer_kwargs["lr"] == 1e-3
    assert (made.training.seq_len, made.training.mixed_precision_param) == (128, "float32")
    assert (made.dataloader.dataset, made.dataloader.dataset_path) == ("texts", "data/train")
    assert made.model_spec.name == "tiny_llama"
    again = pickle.loads(pickle.dumps(loaded.config))
    assert again == loaded.config


@ONLY_0_3
def test_keys_of_loaders_and_losses_of_ones_own_are_keys(project: Path) -> None:
    text = (project / "tiny_llama.py").read_text()
    (project / "own_llama.py").write_text(
        text.replace("class TinyLoss(CrossEntropyLoss):", "class OwnLoss(CrossEntropyLoss):")
        .replace("Config(CrossEntropyLoss.Config):\n        pass", OWN_LOSS)
        .replace("TinyLoss.Config(", "OwnLoss.Config(")
    )
    wanted = config("module=own_llama", "config=test", "loss.smoothing=0.5")
    assert wanted.trainer_config().loss.smoothing == 0.5
    assert wanted.trainer_config().loss.is_checked
    with pytest.raises(ConfigError, match=r"did you mean 'loss.smoothing'"):
        config("module=own_llama", "config=test", "loss.smothing=0.5")
    with pytest.raises(ConfigError, match=r"'loss.smoothing' TorchTitan refuses it: .* negative"):
        config("module=own_llama", "config=test", "loss.smoothing=-1.0")


OWN_LOSS = """Config(CrossEntropyLoss.Config):
        smoothing: float = 0.1
        is_checked: bool = False

        def __post_init__(self):
            if self.smoothing < 0:
                raise ValueError("loss.smoothing is negative")
            self.is_checked = True"""


@ONLY_0_3
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("config=llama3_9b", "'config' = 'llama3_9b': .*llama3_8b"),
        ("module=lama3", "'module' = 'lama3': Cannot import .* the folder that the run"),
        ("model.flavor=8B", "'model.flavor' is gone: `module` and `config` name"),
        ("validation.seq_len=8", "is gone: TorchTitan 0.3 validates with the training's"),
        ("training.datset=c4", "did you mean 'dataloader.dataset'"),
        (
            "parallelism.pipeline_parallel_microbatch_size=0",
            "'parallelism.pipeline_parallel_microbatch_size' TorchTitan refuses it",
        ),
    ],
)
def test_a_mistake_in_what_0_3_calls_otherwise(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config(override)


@ONLY_0_3
def test_a_file_for_0_2_is_read_where_0_3_has_the_key_under_another_name() -> None:
    text = "[validation]\nenable = true\nfreq = 7\n[training]\ndataset_path = 'somewhere'\n"
    loaded = resolve_config(TitanConfig, text, Path("old.toml"))
    assert (loaded.config.validator.freq, loaded.config.validator.enable) == (7, True)
    assert loaded.config.dataloader.dataset_path == "somewhere"
    assert loaded.origins["validator.freq"].line == 3
    with pytest.raises(ConfigError, match=r"old.toml:2: 'model.name' is gone: .*\n  2 \| name"):
        resolve_config(TitanConfig, "[model]\nname = 'llama3'\n", Path("old.toml"))


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainin.steps=3", "did you mean 'training.steps'"),
        (
            "parallelism.tensor_paralel_degree=2",
            "did you mean 'parallelism.tensor_parallel_degree'",
        ),
        ("training.steps=many", "expects an integer"),
        ("parallelism.fsdp_reshard_after_forward=som", "one of 'default', 'always'"),
        ("checkpoint.interval=0", "'checkpoint.interval' must be at least 1"),
        ("metrics.log_freq=0", "'metrics.log_freq' must be at least 1"),
        ("validation.freq=0", f"'{VALIDATION}.freq' must be at least 1"),
        ("validation.steps=0", rf"'{VALIDATION}.steps' must be at least 1 \(or -1"),
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
    function = ["--module=llama3", "--config=llama3_debugmodel"] if IS_0_3 else []
    with pytest.raises(ConfigError, match=r"--training\.steps"):
        from_flags([*function, "--training.stepss", "3"])


@ONLY_0_2
def test_a_missing_file_of_flags() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        from_flags(["--job.config_file", "nowhere.toml"])


@ONLY_0_2
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
        pytest.param(
            ["fault_tolerance.enable=true"],
            "TorchTitan's Trainer has no part in TorchFT",
            marks=ONLY_0_2,
        ),
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
    output = titan.keys.output
    assert value_at(placed, output) == str(tmp_path)
    assert placed.checkpoint.folder == "checkpoints/titan"
    placed = in_folder(config("job.dump_folder=/data"), tmp_path)
    assert value_at(placed, output) == "/data"


@pytest.mark.parametrize("version", ["0.4.0", "0.1.0"])
def test_another_torchtitan_is_refused_with_those_that_are_known(version: str) -> None:
    with pytest.raises(JobError, match=rf"torchtitan {version} .* or torchtitan==0.2.2"):
        module_for(version)


def test_each_torchtitan_has_its_adapter() -> None:
    assert [module_for(version) for version in ("0.2.2", "0.3.0", "0.3.1.dev20261101")] == [
        "titan_0_2", "titan_0_3", "titan_0_3",
    ]  # fmt: skip


def test_only_the_adapters_import_torchtitan() -> None:
    folder = Path(recipe_file).parent
    importing = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"^\s*(import|from) torchtitan\b", path.read_text(), re.MULTILINE)
        or '"torchtitan.' in path.read_text()
    }
    assert importing == {
        f"versions/{name}.py"
        for name in ("config_0_2", "titan_0_2", "config_0_3", "titan_0_3", "cpu")
    }


@pytest.mark.parametrize(("recipe", "extra"), [("titan", "titan"), ("ddp", "train")])
def test_a_recipe_without_its_packages_says_what_to_install(
    recipe: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="torch")

    monkeypatch.setattr("monarch.runs.recipe.recipe.importlib.import_module", missing)
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
        assert f"`{key.replace('validator.', 'validation.')}`" in text


def test_what_a_full_disk_cut_short_is_made_again(tmp_path: Path) -> None:
    with small_files(200), pytest.raises(OSError, match="File too large"):
        copy_edited(tmp_path)
    copy_edited(tmp_path)
    assert "[training]" in (tmp_path / "titan.toml").read_text()


def test_a_copy_of_the_recipe_is_whole_and_keeps_the_preload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CommandFolder(tmp_path).here(monkeypatch, "recipe", "cp", "titan", "copy_of_titan")
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = find_recipe(str(tmp_path / "copy_of_titan"))
    assert recipe.config_class.__module__.startswith("copy_of_titan.versions.config_0_")
    ours = {name for name in sys.modules if name.startswith("copy_of_titan.")}
    copied = {
        ".".join(("copy_of_titan", *path.relative_to(recipe.path).with_suffix("").parts))
        for path in recipe.path.rglob("[a-z]*.py")
    }
    of_others = "_0_2" if IS_0_3 else "_0_3|older_torch|overlay"
    expected = {name for name in copied if not re.search(of_others, name)}
    assert ours - {"copy_of_titan.versions"} == expected
    for name in ours:
        members = vars(sys.modules[name]).values()
        homes = {getattr(each, "__module__", "") or "" for each in members}
        assert not [home for home in homes if home.startswith("monarch_recipes.titan")]
    assert preload_of("titan") == preload_of(str(tmp_path / "copy_of_titan")) == PRELOAD
