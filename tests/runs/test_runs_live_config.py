from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monarch.config_file import ConfigError, live, live_keys, load_config, with_keys_of
from monarch.runs import LiveConfig


@dataclass(frozen=True)
class Schedule:
    rate: float = live(1.0)
    kind: str = "cosine"


@dataclass(frozen=True)
class Config:
    size: int = 8
    name: str = live("one")
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ConfigError("is bad", key="name")
        if self.name == "worse":
            raise ValueError("no name is worse")


class Files:
    """The run's own file, and the person's."""

    def __init__(self, folder: Path) -> None:
        self.own, self.given = folder / "config.toml", folder / "mine.toml"
        self.own.write_text("")
        self.given.write_text("")
        self.written: list[Config] = []
        readers = {path: self.reader(path) for path in (self.own, self.given)}
        self.live = LiveConfig(Config(), readers, self.written.append)

    def reader(self, path: Path):
        return lambda: load_config(Config, path).config

    def edit(self, path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_live_keys_are_found_in_tables_too() -> None:
    assert live_keys(Config) == ["name", "schedule.rate"]
    assert Config().schedule.rate == 1.0


def test_single_keys_are_taken_over() -> None:
    other = Config(9, "two", Schedule(3.0, "linear"))
    assert with_keys_of(Config(), other, ["schedule.rate"]) == Config(schedule=Schedule(3.0))
    with pytest.raises(ConfigError, match="is bad"):
        with_keys_of(Config(), _Unchecked(), ["name"])


@dataclass(frozen=True)
class _Unchecked:
    name: str = "bad"


def test_nothing_is_told_while_nothing_is_edited(files: Files) -> None:
    assert files.live.poll() is None
    os.utime(files.given)
    assert files.live.poll() is None


def test_an_edit_applies_what_is_live_and_names_the_rest(files: Files) -> None:
    files.edit(files.given, 'size = 9\nname = "two"\n[schedule]\nrate = 3\n')
    change = files.live.poll()
    assert change is not None
    assert change.applied == {"name": ("one", "two"), "schedule.rate": (1.0, 3.0)}
    assert change.waiting == {"size": (8, 9)}
    assert files.live.config == Config(8, "two", Schedule(3.0))
    assert files.written == [files.live.config], "the run's own file keeps up"
    assert files.live.poll() is None


def test_what_one_file_does_not_say_it_does_not_take_back(files: Files) -> None:
    files.edit(files.own, 'name = "two"\n')
    files.live.poll()
    files.edit(files.given, "[schedule]\nrate = 3\n")
    change = files.live.poll()
    assert change is not None
    assert list(change.applied) == ["schedule.rate"]
    assert files.live.config == Config(8, "two", Schedule(3.0))


@pytest.mark.parametrize(
    "text",
    [
        "name = 3", "name = ", 'name = "bad"', 'name = "worse"', "other = 1",
        f"schedule.rate = 1{'0' * 400}", f"size = 1{'0' * 5000}",
    ],
    ids=["type", "syntax", "bad", "worse", "unknown", "no-float", "no-int"],
)  # fmt: skip
def test_a_file_that_cannot_be_used_changes_nothing(files: Files, text: str) -> None:
    files.edit(files.given, text)
    change = files.live.poll()
    assert change is not None
    assert change.error
    assert files.live.config == Config()
    assert files.live.poll() is None, "it is told once"
    files.edit(files.given, 'name = "three"')
    files.live.poll()
    assert files.live.config.name == "three"


def test_a_file_that_is_just_being_replaced_is_left_for_later(files: Files) -> None:
    files.given.unlink()
    assert files.live.poll() is None
    files.edit(files.given, 'name = "two"')
    assert files.live.poll() is not None


def test_a_file_that_an_editor_has_emptied_is_left_for_later(files: Files) -> None:
    files.edit(files.given, "[schedule]\nrate = 3.0")
    files.live.poll()
    files.given.write_text("")
    assert files.live.poll() is None
    assert files.live.config.schedule.rate == 3.0
    files.given.write_text("[schedule]\nrate = 4.0")
    assert files.live.poll() is not None
    assert files.live.config.schedule.rate == 4.0
