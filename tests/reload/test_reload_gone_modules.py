"""Modules whose file is gone: who imports them is told; one that was renamed keeps its objects."""

from __future__ import annotations

import pytest

from .conftest import Project


def gone(project: Project, *names: str) -> list[str]:
    """The warnings of a push that deletes these modules, with paths from the project's folder."""
    paths = [project.path(name) for name in names]
    for path in paths:
        path.unlink()
    report = project.reloader.reload(paths)
    return [text.replace(f"{project.root}/", "") for text in report.warnings]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from waves.extra import scale\n", 1),
        ("import os\nimport waves.extra\n", 2),
        ("import waves.extra as e\n", 1),
        ("from waves import extra\n", 1),
        ("from . import extra\n", 1),
        ("from .extra import scale as s\n", 1),
        ("def f():\n    from waves.extra import scale\n    return scale\n", 2),
        ("class A:\n    def f(self):\n        import waves.extra\n", 3),
        ("try:\n    import nowhere\nexcept ImportError:\n    from .extra import scale\n", 4),
        ("try:\n    from .extra import scale\nexcept KeyError:\n    pass\n", 2),
    ],
)
def test_an_import_of_a_module_that_is_gone_is_told_with_its_line(
    project: Project, text: str, line: int
) -> None:
    project.write("waves.__init__", "")
    project.write("waves.extra", "scale = 2\n")
    project.load("waves.losses", text)
    __import__("waves.extra")
    assert gone(project, "waves.extra") == [
        f"waves/losses.py:{line} imports waves.extra, which is gone; what starts later will fail"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from waves.extra import scale\nexcept ImportError:\n    scale = 1\n",
        "try:\n    import waves.extra\nexcept (KeyError, ModuleNotFoundError):\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from waves.extra import scale\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import waves.extra\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import waves.extra\n",
        "extra = 1  # waves.extra\n",
        "import waves\n",
    ],
)
def test_an_import_that_may_fail_is_not_told(project: Project, text: str) -> None:
    project.write("waves.__init__", "")
    project.write("waves.extra", "scale = 2\n")
    project.load("waves.losses", text)
    __import__("waves.extra")
    assert gone(project, "waves.extra") == []


def test_a_package_whose_folder_is_gone_and_a_module_that_becomes_one(project: Project) -> None:
    project.write("waves.__init__", "")
    project.write("waves.extra", "scale = 2\n")
    project.load("losses", "import waves\nfrom waves.extra import scale\n")
    first, second = project.path("waves"), project.path("waves.extra")
    moved = project.root / "waves" / "extra" / "__init__.py"
    moved.parent.mkdir()
    second.rename(moved)
    assert project.reloader.reload([second, moved]).warnings == []
    first.unlink()
    moved.unlink()
    moved.parent.rmdir()
    first.parent.rmdir()
    warnings = project.reloader.reload([first, moved]).warnings
    assert [text.partition(" imports ")[2].partition(",")[0] for text in warnings] == [
        "waves", "waves", "waves.extra",
    ]  # fmt: skip


def test_who_imports_it_no_more_in_the_same_push_is_not_told(project: Project) -> None:
    project.write("waves.__init__", "")
    project.write("waves.extra", "scale = 2\n")
    project.load("waves.losses", "from waves.extra import scale\nx = 1\n")
    path = project.path("waves.extra")
    path.unlink()
    changed = project.write("waves.losses", "x = 1\n")
    assert project.reloader.reload([path, changed]).warnings == []


@pytest.mark.long
def test_a_rename_over_two_pushes_keeps_the_live_objects(project: Project) -> None:
    project.write("pkg.__init__", "")
    project.write(
        "pkg.model", "class Net:\n    def go(self):\n        return 'old'\ndef f(): return 1\n"
    )
    main = project.load("renamed_main", "from pkg.model import Net, f\n")
    net, held = main.Net(), main.f
    old, new = project.path("pkg.model"), project.root / "pkg" / "net.py"
    old.rename(new)
    assert project.reloader.reload([old, new]).warnings != []
    assert not project.reloader.audit().ok, "no file has the class at this moment"
    project.replace("renamed_main", ("pkg.model", "pkg.net"))
    assert type(net) is main.Net
    assert project.reloader.audit().ok
    project.replace("pkg.net", ("'old'", "'new'"), ("return 1", "return 2"))
    assert (net.go(), held(), type(net) is main.Net) == ("new", 2, True)
    assert project.reloader.audit().ok


@pytest.mark.long
def test_a_rename_that_nobody_can_tell_is_told_by_the_audit(project: Project) -> None:
    project.write("pkg.__init__", "")
    project.write("pkg.model", "class Net:\n    def go(self):\n        return 'old'\n")
    main = project.load("renamed_main", "import pkg.model\nNETS = [pkg.model.Net()]\n")
    path = project.path("pkg.model")
    path.unlink()
    project.reloader.reload([path])
    assert project.reloader.audit().stale == [
        "1 instance of `pkg.model.Net` is alive, and no file has that class any more"
    ]
    assert main.NETS[0].go() == "old"
