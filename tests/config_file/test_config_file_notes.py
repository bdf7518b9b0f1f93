"""What is written beside the fields of a config, and the TOML file that says it."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Literal

from monarch.config_file import live, load_config
from monarch.config_file.notes import Note, notes_of
from monarch.config_file.writer import to_commented_toml


@dataclass
class Inner:
    """What is inside.

    More of it.
    """

    depth: int = 3


@dataclass
class Base:
    beta: float = 0.9
    """Of the first moment,
    and no other."""


@dataclass
class Config(Base):
    # The model.
    width: int = 32  # of a layer
    name: str = 'has a # and "quotes"'
    kind: Literal["plain", "odd"] = "plain"

    # The rest, in
    # two lines.
    rate: float = live(0.1)  # the highest
    # of all, long enough not to fit on one line of eighty columns with its value
    beta: float = 0.5
    inner: Inner = field(default_factory=Inner)


def test_comments_headings_and_docstrings_are_found() -> None:
    assert notes_of(Config) == {
        "width": Note("of a layer", "The model."),
        "name": Note(),
        "kind": Note("one of 'plain', 'odd'"),
        "rate": Note("the highest", "The rest, in two lines."),
        "beta": Note("of all, long enough not to fit on one line of eighty columns with its value"),
        "inner": Note("What is inside."),
        "inner.depth": Note(),
    }


def test_what_a_subclass_says_nothing_of_means_what_it_meant() -> None:
    @dataclass
    class Later(Base):
        beta: float = 0.1

    assert notes_of(Later)["beta"].text == "Of the first moment, and no other."


def test_a_class_that_has_no_source_has_no_notes() -> None:
    assert notes_of(make_dataclass("Made", [("size", int, 1)])) == {"size": Note()}


def test_the_file_says_it_and_loads_to_the_same(tmp_path: Path) -> None:
    text = to_commented_toml(Config())
    assert (
        text
        == """\
beta = 0.5
# The model.
width = 32  # of a layer
name = "has a # and \\"quotes\\""
kind = "plain"  # one of 'plain', 'odd'

# The rest, in two lines.
rate = 0.1  # the highest (live)

# What is inside.
[inner]
depth = 3
""".replace(
            "beta = 0.5\n",
            "# of all, long enough not to fit on one line of eighty columns with its value\n"
            "beta = 0.5\n\n",
        )
    )
    (tmp_path / "config.toml").write_text(text)
    assert load_config(Config, tmp_path / "config.toml").config == Config()
    assert max(map(len, text.splitlines())) <= 80
