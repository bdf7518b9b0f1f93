"""Files that never come to rest under a watch: the watcher hears how to leave them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch.cli.sync.hot_files import HotFiles, LeaveOut
from monarch_sync import Workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("out/run1", "out/run2", "model"):
        (tmp_path / "project" / folder).mkdir(parents=True)
    (tmp_path / "project/model/net.py").write_text("")
    return tmp_path / "project"


def hear(restless: HotFiles, *changed: str, step: float = 1.0, num: int = 10) -> list[str]:
    """The patterns that are told of, push by push."""
    found = [restless.pushed(changed, step * number) for number in range(num)]
    return [way.pattern for way in found if way is not None]


def test_a_folder_is_named_once(project: Path) -> None:
    restless = HotFiles(Workspace({project: ""}))
    assert hear(restless, "out/run1/loss.log", num=9) == []
    assert restless.pushed(["out/run1/loss.log"], 9.0) == LeaveOut(
        "/out/run1/", project / ".monarchignore"
    )
    assert hear(restless, "out/run1/loss.log", num=30) == []


def test_what_all_pushes_have_in_common_is_named(project: Path) -> None:
    restless = HotFiles(Workspace([project]))
    found = [restless.pushed([f"project/out/run{n % 2}/loss"], float(n)) for n in range(10)]
    assert found[-1] == LeaveOut("/out/", project / ".monarchignore")


@pytest.mark.parametrize(
    ("changed", "pattern"),
    [
        ("model/loss.log", "/model/loss.log"),  # its folder has code
        ("loss.log", "/loss.log"),
        ("model/{}.log", "/model/*.log"),
    ],
)
def test_code_is_not_left_out_with_it(project: Path, changed: str, pattern: str) -> None:
    restless = HotFiles(Workspace({project: ""}))
    found = [restless.pushed([changed.format(n)], float(n)) for n in range(10)]
    assert found[-1] is not None
    assert found[-1].pattern == pattern


def test_edits_of_code_between_them_hide_nothing(project: Path) -> None:
    restless = HotFiles(Workspace({project: ""}))
    for number in range(9):
        assert restless.pushed(["out/run1/loss.log"], number) is None
        assert restless.pushed(["model/net.py"], number + 0.5) is None
    assert restless.pushed(["out/run1/loss.log", "model/net.py"], 9.0) is not None


def test_who_edits_hears_nothing(project: Path) -> None:
    restless = HotFiles(Workspace({project: ""}))
    assert hear(restless, "model/net.py", "config.toml", num=100, step=0.1) == []
    assert hear(restless, "data.csv", num=100, step=10.0) == []  # now and then is fine
    names = [f"model/{number}/one.bin" for number in range(20)]
    assert [restless.pushed([name], 1.0) for name in names[:9]] == [None] * 9


def test_weights_are_named_at_their_second_push(project: Path) -> None:
    """A training saves them every few minutes: no burst, and gigabytes to every host each time."""
    hot = HotFiles(Workspace({project: ""}))
    assert hot.pushed(["last.pt", "train.py"], 0.0) is None, "the first may be what it begins with"
    assert hot.pushed(["train.py"], 500.0) is None
    found = hot.pushed(["last.pt"], 1000.0)
    assert found == LeaveOut("/last.pt", project / ".monarchignore", is_sure=False)
    assert hot.pushed(["last.pt"], 2000.0) is None, "once"


def test_logs_of_a_library_are_left_out_at_their_second_push(project: Path) -> None:
    (project / "lightning_logs/version_0").mkdir(parents=True)
    hot = HotFiles(Workspace({project: ""}))
    events = "lightning_logs/version_0/events.out.tfevents.1.host.2.0"
    assert hot.pushed([events], 0.0) is None
    assert hot.pushed([events], 300.0) == LeaveOut("/lightning_logs/", project / ".monarchignore")
    assert hot.pushed(["events.out.tfevents.1.host.2.0"], 400.0) is None
    found = hot.pushed(["events.out.tfevents.1.host.2.0"], 900.0)
    assert found is not None
    assert found.is_sure
