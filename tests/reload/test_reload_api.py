"""`Reloader([root]).reload(...)`: prepare and commit in one process."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path

import pytest

from monarch_reload import NeedsRespawn, Reloader, ReloadError
from monarch_reload.source import source

from .conftest import Project

ONE, TWO = "def f():\n    return 1\n", "def f():\n    return 2\n"


@pytest.mark.parametrize("spelling", ["str", "Path", "relative", "cwd", "dots", "folder"])
def test_paths_may_be_spelled_in_any_way(
    project: Project, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "pack").mkdir()
    project.write("pack", "")
    module = project.load("pack.api_mod", ONE)
    path = project.write("pack.api_mod", TWO)
    if spelling == "cwd":
        monkeypatch.chdir(path.parent)
    given = {
        "str": str(path),
        "Path": path,
        "relative": "pack/api_mod.py",
        "cwd": "api_mod.py",
        "dots": Path("pack", "..", "pack", "api_mod.py"),
        "folder": "pack",
    }[spelling]
    report = project.reloader.reload([given])
    assert report.modules == ["pack.api_mod"]
    assert module.f() == 2


def test_a_relative_path_means_the_loaded_file(tmp_path: Path, project: Project) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "api_mod.py").write_text("x = 1\n")
    module = project.load("api_mod", ONE)
    project.write("api_mod", TWO)
    with Reloader([other, project.root]) as reloader:
        module = sys.modules["api_mod"]
        project.write("api_mod", ONE.replace("1", "3"))
        reloader.reload(["api_mod.py"])
        assert module.f() == 3


def test_changed_files_are_found_without_being_named(project: Project) -> None:
    module = project.load("api_mod", ONE)
    other = project.load("other_mod", "x = 1\n")
    reload = project.reloader.reload
    assert str(reload()) == "nothing to reload"
    path = project.write("api_mod", TWO)
    stat = path.stat()
    assert reload().modules == ["api_mod"]
    for number in range(3, 8):  # the same size, the same mtime, the same instant
        project.write("api_mod", ONE.replace("1", str(number)))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert reload().modules == ["api_mod"]
        assert module.f() == number
    assert reload().modules == []
    project.write("api_mod", "def f(:\n")
    for _ in range(2):  # a refused file stays a changed one
        with pytest.raises(ReloadError, match=r"api_mod\.py:1"):
            reload()
    assert (module.f(), other.x) == (7, 1)


def test_deleted_and_new_files(project: Project) -> None:
    module = project.load("api_mod", ONE)
    path = project.path("api_mod")
    path.unlink()
    report = project.reloader.reload()
    assert report.verdicts["api_mod"].action == "unloaded"
    assert project.reloader.reload().verdicts == {}
    assert module.f() == 1
    project.write("api_mod", TWO)
    assert project.reloader.reload().modules == ["api_mod"]
    assert module.f() == 2
    new = project.write("new_mod", ONE)
    report = project.reloader.reload([new, "gone.py", project.root / "never.py"])
    assert [verdict.action for verdict in report.verdicts.values()] == ["unloaded"] * 3
    assert "new_mod" not in sys.modules
    project.write("api_mod", "from new_mod import f\n")
    project.reloader.reload()
    assert module.f() == 1


def test_a_refused_reload_changes_nothing(project: Project) -> None:
    module = project.load("api_mod", "C = 1\nLOG = []\n" + ONE)
    other = project.load("other_mod", "x = 1\n")
    before = dict(vars(module))
    project.write("other_mod", "x = 2\n")
    project.write("api_mod", "C = 2\nLOG.append(1)\n" + TWO + "raise ValueError('no')\n")
    with pytest.raises(ReloadError, match="no"):
        project.reloader.reload()
    assert {**vars(module)} == before
    assert (module.f(), module.LOG, other.x) == (1, [], 1)


def test_what_needs_a_new_process_is_refused_before_anything_changes(project: Project) -> None:
    source = "class A:\n    __slots__ = ('x',)\n" + ONE
    module = project.load("api_mod", source)
    project.write("api_mod", source.replace("'x',", "'x', 'y'").replace("1", "2"))
    with pytest.raises(NeedsRespawn, match="__slots__ changed") as caught:
        project.reloader.reload()
    assert module.f() == 1
    error = pickle.loads(pickle.dumps(caught.value))
    assert [(v.module, v.action, v.classes) for v in error.verdicts] == [
        ("api_mod", "respawn", ("A",))
    ]
    with pytest.raises(NeedsRespawn):
        project.reloader.reload(mode="patch")
    report = project.reloader.reload(mode="respawn")
    assert report.needs_respawn
    assert project.reloader.reload(mode="off").verdicts == {}
    assert module.f() == 1


def test_the_report_is_data_and_a_table(project: Project) -> None:
    source = "C = 1\nclass A:\n    x = 1\n    def m(self):\n        return 1\n" + ONE
    project.load("api_mod", source)
    project.load("user_mod", "import api_mod\nD = api_mod.C + 1\n")
    text = source.replace("C = 1", "C = 5").replace("return 1", "return 2").replace("x = 1", "x=3")
    project.write("api_mod", text)
    report = project.reloader.reload()
    assert {name: v.action for name, v in report.verdicts.items()} == {
        "api_mod": "rerun",
        "user_mod": "rerun",
    }
    assert (report.prepare_seconds > 0, report.seconds > 0) == (True, True)
    lines = [line.split() for line in str(report).splitlines()[1:]]
    assert lines == [
        ["module", "verdict", "what"],
        ["api_mod", "re-run", "A.m,", "f"],
        ["line", "1", "C", "=", "5"],
        ["user_mod", "re-run", "line", "2", "D", "=", "api_mod.C", "+", "1"],
    ]
    again = pickle.loads(pickle.dumps(report))
    assert str(again) == str(report)


def test_a_lone_root_is_not_taken_for_many() -> None:
    """A string would be as many folders as it has letters, and nothing would ever reload."""
    for root in ("/somewhere", Path("/somewhere")):
        with pytest.raises(TypeError, match="roots is a list of folders: "):
            Reloader(root)  # type: ignore[arg-type]


def test_naming_a_root_again_looks_at_no_module_that_lies_elsewhere(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with torch has thousands of them, and each push names its roots again."""
    project.load("api_here", ONE)
    project.reloader.add_root(project.root)
    looked: list[str] = []
    real = source._real_folder

    def note(folder: str) -> str:
        looked.append(folder)
        return real(folder)

    monkeypatch.setattr(source, "_real_folder", note)
    project.reloader.add_root(project.root)
    assert [folder for folder in looked if folder != str(project.root)] == []


def test_a_module_that_lay_elsewhere_is_found_once_its_folder_is_a_root(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "api_other.py").write_text(ONE)
    made = type(sys)("api_other")
    made.__file__ = str(other / "api_other.py")
    monkeypatch.setitem(sys.modules, "api_other", made)
    project.reloader.add_root(project.root)
    assert "api_other" not in dict(project.reloader.loaded())
    project.reloader.add_root(other)
    assert "api_other" in dict(project.reloader.loaded())


def test_naming_a_root_again_changes_nothing(project: Project) -> None:
    """A process in the runtime names its roots with each push, thousands of times."""
    project.load("api_again", ONE)
    roots = list(project.reloader._roots), list(project.reloader._sources._roots)
    for _ in range(3):
        project.reloader.add_root(project.root)
    assert (project.reloader._roots, project.reloader._sources._roots) == roots


def test_what_files_held_at_the_import_may_be_told(tmp_path: Path, project: Project) -> None:
    """Two modules of one name, one after the other: the second is looked at as well."""
    texts: dict[str, bytes] = {}
    with Reloader([], imported=lambda: texts) as reloader:
        for folder, text, after in (
            ("one", "KEPT = []\nX = 1\n", 51),
            ("two", "KEPT = []\nX = 10\n", 510),
        ):
            path = tmp_path / folder / "told_mod.py"
            path.parent.mkdir()
            path.write_text(text)
            sys.modules.pop("told_mod", None)
            sys.path.insert(0, str(path.parent))
            try:
                module = importlib.import_module("told_mod")
            finally:
                sys.path.remove(str(path.parent))
            texts[str(path)] = text.encode()
            kept = module.KEPT
            path.write_text(text.replace("X = ", "X = 5"))
            reloader.add_root(path.parent)
            assert reloader.changed_paths()[:1] == [str(path)]
            reloader.reload()
            assert after == module.X
            assert module.KEPT is kept, "of a known text, only what was edited runs again"
    del sys.modules["told_mod"]


def test_methods_that_were_not_edited_are_not_told_whatever_they_call(project: Project) -> None:
    text = "import os\nclass A:\n    def pid(self):\n        return os.getpid()\n"
    module = project.load("api_mod", text)
    before, number = module.A.pid.__code__, module.A().pid()
    path = project.write("api_mod", text + "    def more(self):\n        return self.pid()\n")
    report = project.reloader.reload([path])
    assert report.functions == []
    assert module.A.pid.__code__.co_code == before.co_code
    assert module.A().more() == number
