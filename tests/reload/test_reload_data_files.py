"""Config files that top-level code reads."""

from __future__ import annotations

import pytest

from monarch_reload import ReloadError

from .conftest import Project

CONF = """
import functools, json, os
HERE = os.path.dirname(__file__)
STATE = []
with open(os.path.join(HERE, "conf.json")) as file:
    CONFIG = json.load(file)
RATE = CONFIG["rate"] * 10
@functools.cache
def settings():
    with open(os.path.join(HERE, "conf.json")) as file:
        return json.load(file)
LATE = settings()["rate"]
def use():
    return RATE, settings()["rate"]
"""


@pytest.fixture
def conf(project: Project) -> object:
    (project.root / "conf.json").write_text('{"rate": 1}')
    return project.load("conf_mod", CONF)


@pytest.mark.parametrize("named", [True, False], ids=["named", "found"])
def test_what_was_read_is_read_again(project: Project, conf: object, named: bool) -> None:
    user = project.load("user_mod", "from conf_mod import CONFIG, RATE\nTWICE = RATE * 2\n")
    conf.STATE.append("kept")
    assert project.reloader.changed_paths() == []
    path = project.root / "conf.json"
    path.write_text('{"rate": 5}')
    report = project.reloader.reload(["conf.json"] if named else None)
    assert (conf.RATE, conf.LATE, conf.use(), user.TWICE) == (50, 5, (50, 5), 100)
    assert (user.CONFIG, conf.STATE) == ({"rate": 5}, ["kept"])
    assert report.verdicts[str(path)].action == "rerun"
    assert (report.verdicts["conf_mod"].action, report.modules) == (
        "rerun",
        ["conf_mod", "user_mod"],
    )
    assert "conf.json" in str(report)
    if not named:
        assert project.reloader.changed_paths() == []
    report.undo()
    assert (conf.RATE, user.TWICE) == (10, 20)


def test_an_edit_before_the_first_look_is_found(project: Project, conf: object) -> None:
    (project.root / "conf.json").write_text('{"rate": 7}')
    project.reloader.reload()
    assert conf.RATE == 70


def test_a_broken_config_file_changes_nothing(project: Project, conf: object) -> None:
    (project.root / "conf.json").write_text('{"rate": ')
    with pytest.raises(ReloadError, match="JSONDecodeError"):
        project.reloader.reload(["conf.json"])
    assert (conf.RATE, conf.use()) == (10, (10, 1))


def test_a_config_file_that_nobody_names_just_changes(project: Project, conf: object) -> None:
    (project.root / "other.toml").write_text("x = 1\n")
    report = project.reloader.reload(["other.toml"])
    assert [verdict.action for verdict in report.verdicts.values()] == ["unloaded"]
    assert report.modules == []


def test_a_name_that_is_only_an_option_s_default_runs_nothing(project: Project) -> None:
    source = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--config', default='run.toml')\n"
    )
    module = project.load("cli_mod", source)
    parser = module.parser
    (project.root / "run.toml").write_text("x = 1\n")
    report = project.reloader.reload(["run.toml"])
    assert (module.parser is parser, report.modules) == (True, [])


def test_config_and_code_in_one_reload(project: Project, conf: object) -> None:
    (project.root / "conf.json").write_text('{"rate": 2, "steps": 3}')
    text = CONF.replace("RATE = ", 'STEPS = CONFIG["steps"]\nRATE = ').replace(
        "return RATE", "return -RATE"
    )
    project.write("conf_mod", text)
    project.reloader.reload()
    assert (conf.STEPS, conf.use()) == (3, (-20, 2))
