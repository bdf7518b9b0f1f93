"""Keys that hold tables of their own, such as the hosts of a job by name."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from monarch.config_file import ConfigError, resolve_config, to_toml


@dataclass
class Job:
    hosts: dict[str, int] = field(default_factory=dict)


@dataclass
class Project:
    job: Job = field(default_factory=Job)


@pytest.mark.parametrize("text", ["[job]\nhosts = { a = 2, b = 1 }", "[job.hosts]\na = 2\nb = 1"])
def test_a_table_of_integers_is_read_and_written(text: str) -> None:
    config = resolve_config(Project, text).config
    assert config.job.hosts == {"a": 2, "b": 1}
    assert resolve_config(Project, to_toml(config)).config == config


def test_a_wrong_value_in_a_table_is_refused_by_line() -> None:
    with pytest.raises(ConfigError, match=r"job\.hosts") as caught:
        resolve_config(Project, '[job]\n\nhosts = { a = "two" }')
    assert caught.value.line == 3
