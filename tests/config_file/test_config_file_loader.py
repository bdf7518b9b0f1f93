from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.config_file import (
    ConfigError,
    changed_keys,
    load_config,
    resolve_config,
    to_toml,
)


@dataclass
class Data:
    seed: int = 1
    path: Path = Path("data")
    shuffle: bool = True


@dataclass
class Optimizer:
    name: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    data: Data = field(default_factory=lambda: Data(seed=7))


@dataclass
class Config:
    learning_rate: float = 1e-3
    num_epochs: int = 12
    run_name: str = "run"
    hidden: list[int] = field(default_factory=lambda: [64, 32])
    tags: tuple[str, ...] = ()
    clip_norm: Optional[float] = 1.0  # noqa: UP045 - the older spelling works too
    resume_from: Path | None = None
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        if self.num_epochs < 1:
            raise ConfigError("must be at least 1", key="num_epochs")


FULL = """\
# the whole of it
learning_rate = 3e-4
num_epochs = 3
run_name = "try"
hidden = [8]
tags = ["a", "b"]
clip_norm = "none"
resume_from = "old/run"

[data]
seed = 5
path = "elsewhere"
shuffle = false

[optimizer]
name = "sgd"
betas = [0, 0.5]
data = { seed = 9 }
"""


def error_of(text: str = "", **layers: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve_config(Config, text, Path("ddp.toml"), **layers)
    return caught.value


def test_every_kind_of_value_is_read_from_a_file() -> None:
    assert resolve_config(Config, FULL).config == Config(
        learning_rate=3e-4,
        num_epochs=3,
        run_name="try",
        hidden=[8],
        tags=("a", "b"),
        clip_norm=None,
        resume_from=Path("old/run"),
        data=Data(5, Path("elsewhere"), False),
        optimizer=Optimizer("sgd", (0.0, 0.5), Data(seed=9)),
    )


def test_an_empty_file_gives_the_defaults() -> None:
    assert resolve_config(Config, "").config == Config()


def test_a_nested_default_keeps_what_the_file_does_not_mention() -> None:
    config = resolve_config(Config, "[optimizer.data]\nshuffle = false").config
    assert config.optimizer.data == Data(seed=7, shuffle=False)


def test_the_last_layer_wins_and_each_origin_is_kept() -> None:
    loaded = resolve_config(
        Config,
        "num_epochs = 2\nlearning_rate = 0.2\n[data]\nseed = 2",
        Path("ddp.toml"),
        overrides=["data.seed=4"],
        environment={
            "MONARCH_CONFIG_LEARNING_RATE": "0.3",
            "MONARCH_CONFIG_DATA__SEED": "3",
            "PATH": "/bin",
        },
    )
    assert loaded.config == Config(num_epochs=2, learning_rate=0.3, data=Data(seed=4))
    origins = loaded.origins
    assert (origins["num_epochs"].layer, origins["num_epochs"].text) == ("file", "ddp.toml:1")
    assert origins["learning_rate"].text == "MONARCH_CONFIG_LEARNING_RATE=0.3"
    assert (origins["data.seed"].layer, origins["data.seed"].text) == ("override", "data.seed=4")
    assert origins["run_name"].layer == "default"
    assert list(origins)[-1] == "optimizer.data.shuffle"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("learning_rate=1", "learning_rate", 1.0),
        ("learning_rate=1e-4", "learning_rate", 1e-4),
        ("learning_rate=INF", "learning_rate", math.inf),
        ("num_epochs = 1_000 ", "num_epochs", 1000),
        ("run_name=plain words", "run_name", "plain words"),
        ("run_name='quoted'", "run_name", "quoted"),
        ("run_name=123", "run_name", "123"),
        ("run_name=a=b", "run_name", "a=b"),
        ("run_name=", "run_name", ""),
        ("run_name=None", "run_name", "None"),
        ("hidden=1,2, 3", "hidden", [1, 2, 3]),
        ("hidden=[4]", "hidden", [4]),
        ("hidden=5", "hidden", [5]),
        ("hidden=", "hidden", []),
        ("tags=a,b", "tags", ("a", "b")),
        ("tags=one", "tags", ("one",)),
        ("clip_norm=None", "clip_norm", None),
        ("clip_norm=0.5", "clip_norm", 0.5),
        ("resume_from=a/b", "resume_from", Path("a/b")),
        ("resume_from=none", "resume_from", None),
    ],
)
def test_overrides_are_read_plainly(override: str, key: str, value: object) -> None:
    assert getattr(resolve_config(Config, "", overrides=[override]).config, key) == value


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_a_boolean_override(text: str) -> None:
    config = resolve_config(Config, "data.shuffle = false", overrides=[f"data.shuffle={text}"])
    assert config.config.data.shuffle is True


@pytest.mark.parametrize(
    ("text", "line", "key", "suggestion"),
    [
        ("\n\nlerning_rate = 1", 3, "lerning_rate", "learning_rate"),
        ("[data]\nsed = 1", 2, "data.sed", "data.seed"),
        ("seed = 1", 1, "seed", "data.seed"),
        ("data.shufle = true", 1, "data.shufle", "data.shuffle"),
        ("data = { seed = 1, pth = 'x' }", 1, "data.pth", "data.path"),
        ("[optimiser]\nname = 'sgd'", 1, "optimiser", "optimizer"),
        ("[data.seed]\nx = 1", 1, "data.seed", None),
        ("zzzzz = 1", 1, "zzzzz", None),
    ],
)
def test_an_unknown_key_names_file_line_key_and_the_nearest_known(
    text: str, line: int, key: str, suggestion: str | None
) -> None:
    error = error_of(text)
    assert (error.path, error.line, error.key) == (Path("ddp.toml"), line, key)
    assert error.suggestion == suggestion
    assert str(error).startswith(f"ddp.toml:{line}: ")
    assert f"'{key}'" in str(error)
    assert ("did you mean" in str(error)) == (suggestion is not None)


def test_the_whole_message_of_an_unknown_key() -> None:
    assert str(error_of("# top\nlerning_rate = 1")) == (
        "ddp.toml:2: unknown key 'lerning_rate'; did you mean 'learning_rate'?\n"
        "  2 | lerning_rate = 1"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('num_epochs = "ten"', "'num_epochs' expects an integer, got the string \"ten\""),
        ("num_epochs = 1.5", "expects an integer, got the number 1.5"),
        ("num_epochs = true", "expects an integer, got the boolean true"),
        ('learning_rate = "x"', "expects a number, got the string"),
        ("run_name = 3", "expects a string, got the integer 3"),
        ("hidden = [1, 'a']", 'expects an integer, got the string "a"'),
        ("hidden = 1", "expects a list of integers, got the integer 1"),
        ("clip_norm = 'x'", 'expects a number or "none", got'),
        ("data.shuffle = 1", "expects true or false, got the integer 1"),
        ("data.path = 1", "expects a path, got the integer 1"),
        ("data = 1", "'data' is a table of keys, such as 'data.seed', not a value"),
        ("[[data]]\nseed = 1", "'data' is a table of keys"),
        ("optimizer.betas = [1.0]", "expects a list of 2 values, got the list [1.0]"),
        ("run_name = { a = 1 }", "expects a string, got a table"),
        ("run_name = 1979-05-27", "expects a string, got the date 1979-05-27"),
    ],
)
def test_a_wrong_type_says_what_was_expected_and_what_was_there(text: str, message: str) -> None:
    error = error_of(f"# one\n{text}")
    assert error.line == 2
    assert str(error).startswith("ddp.toml:2: ")
    assert message in str(error)


def test_a_wrong_choice_suggests_the_nearest() -> None:
    error = error_of('[optimizer]\nname = "adam"')
    assert (error.line, error.key, error.suggestion) == (2, "optimizer.name", "adamw")
    assert "expects one of 'adamw', 'sgd', got the string \"adam\"" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = 1\nb = \n", 2, 5),
        ("num_epochs = = 3", 1, 14),
        ("x = 1\nx = 2\n", 2, 6),
    ],
)
def test_a_syntax_error_points_at_the_place(text: str, line: int, column: int) -> None:
    error = error_of(text)
    first, shown, caret = str(error).split("\n")
    assert first.startswith(f"ddp.toml:{line}:{column}: ")
    assert error.line == line
    assert shown == f"  {line} | {text.splitlines()[line - 1]}"
    assert caret.index("^") == len(f"  {line} | ") + column - 1


def test_a_text_that_ends_too_early() -> None:
    error = error_of('a = 1\nb = """\nnever closed')
    assert error.line == 3
    assert "and the file ends" in str(error)


def test_errors_of_overrides_and_variables_name_their_text() -> None:
    error = error_of(overrides=["num_epochs=ten"])
    assert str(error) == "override 'num_epochs=ten': 'num_epochs' expects an integer, got 'ten'"
    assert (error.path, error.line, error.key) == (None, None, "num_epochs")

    error = error_of(overrides=["epochs=3"])
    assert str(error) == ("override 'epochs=3': unknown key 'epochs'; did you mean 'num_epochs'?")
    assert "is written key=value" in str(error_of(overrides=["num_epochs"]))
    assert "is a table of keys" in str(error_of(overrides=["data=1"]))

    error = error_of(environment={"MONARCH_CONFIG_DATA__SED": "1"})
    assert str(error) == (
        "environment 'MONARCH_CONFIG_DATA__SED=1': unknown key 'data.sed'; "
        "did you mean 'data.seed'?"
    )


def test_an_override_cannot_begin_a_second_key() -> None:
    assert "expects an integer" in str(error_of(overrides=["num_epochs=3\nx=1"]))


@pytest.mark.parametrize(
    ("text", "layers", "start"),
    [
        ("# zero\nnum_epochs = 0", {}, "ddp.toml:2: 'num_epochs' must be at least 1\n  2 | num"),
        ("", {"overrides": ["num_epochs=0"]}, "override 'num_epochs=0': 'num_epochs' must be"),
    ],
)
def test_what_the_config_itself_refuses_is_named_by_its_place(
    text: str, layers: dict[str, Any], start: str
) -> None:
    assert str(error_of(text, **layers)).startswith(start)


def test_a_key_without_a_default_must_be_given() -> None:
    @dataclass
    class Required:
        steps: int

    with pytest.raises(ConfigError, match=r"^a\.toml: the key 'steps' has no value$"):
        resolve_config(Required, "", Path("a.toml"))
    assert resolve_config(Required, "steps = 3").config == Required(3)


def test_errors_survive_pickling() -> None:
    error = error_of("lerning_rate = 1")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.__dict__) == (str(error), error.__dict__)


def test_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b"num_epochs = 4\r\n[data]\r\nseed = 'x'\r\n")
    with pytest.raises(ConfigError) as caught:
        load_config(Config, path)
    assert caught.value.line == 3
    assert str(caught.value).endswith("  3 | seed = 'x'")
    path.write_text("num_epochs = 4")
    assert load_config(Config, path, ["data.seed=2"]).config == Config(
        num_epochs=4, data=Data(seed=2)
    )
    assert load_config(Config).config == Config()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the config: No such file"):
        load_config(Config, tmp_path / "no.toml")
    (tmp_path / "latin.toml").write_bytes(b"run_name = '\xff'")
    with pytest.raises(ConfigError, match=r"cannot read the config: .*utf-8"):
        load_config(Config, tmp_path / "latin.toml")


def test_written_config_shows_origins_and_loads_again() -> None:
    loaded = resolve_config(Config, FULL, Path("ddp.toml"), overrides=["hidden=1,2"])
    written = to_toml(loaded.config, loaded.origins)
    assert "hidden = [1, 2]  # hidden=1,2\n" in written
    assert "seed = 5  # ddp.toml:11\n" in written
    assert resolve_config(Config, written).config == loaded.config


texts = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != "none")


@given(
    st.builds(
        Config,
        learning_rate=st.floats(allow_nan=False),
        num_epochs=st.integers(1, 2**62),
        run_name=texts,
        hidden=st.lists(st.integers(-9, 9)),
        tags=st.lists(texts).map(tuple),
        clip_norm=st.none() | st.floats(allow_nan=False),
        data=st.builds(Data, shuffle=st.booleans()),
    )
)
def test_any_config_survives_being_written(config: Config) -> None:
    assert resolve_config(Config, to_toml(config)).config == config


def test_changed_keys_are_dotted_and_in_order() -> None:
    new = dataclasses.replace(Config(), data=Data(seed=2), run_name="other")
    assert changed_keys(Config(), new) == ["run_name", "data.seed"]
    assert changed_keys(Config(), Config()) == []


def test_config_and_schedule_do_not_import_torch() -> None:
    modules = "monarch.config_file, monarch_recipes.schedule"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
