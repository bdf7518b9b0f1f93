# ruff: noqa: E501  (programs in one line each)

"""Files that come, go, move or break under running modules, and what new code does to the process."""

from __future__ import annotations

import atexit
import importlib
import os
import runpy
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from monarch_reload import Reloader, ReloadError

from .conftest import Project


def test_module_deleted_while_others_import_from_it(project: Project) -> None:
    module = project.load("gone_mod", "def f():\n    return 1\nclass C:\n    x = 1\n")
    user = project.load("user_mod", "from gone_mod import f, C\ndef g():\n    return f(), C.x\n")
    project.path("gone_mod").unlink()
    report = project.reloader.reload()
    assert report.verdicts["gone_mod"].action == "unloaded"
    assert user.g() == (1, 1)
    project.edit("user_mod", "from gone_mod import f, C\ndef g():\n    return f(), C.x, 2\n")
    assert user.g() == (1, 1, 2)
    # It comes back, as something else.
    project.write("gone_mod", "def f():\n    return 5\nclass C:\n    x = 6\n")
    project.reloader.reload()
    assert (user.g(), sys.modules["gone_mod"]) == ((5, 6, 2), module)


def test_module_renamed_and_its_users_follow(project: Project) -> None:
    project.load("old_name", "def f():\n    return 'old'\n")
    user = project.load("user_mod", "from old_name import f\ndef g():\n    return f()\n")
    text = project.path("old_name").read_text().replace("'old'", "'new'")
    project.path("old_name").unlink()
    new = project.write("new_name", text)
    users = project.write("user_mod", "from new_name import f\ndef g():\n    return f()\n")
    project.reloader.reload([project.root / "old_name.py", new, users])
    assert user.g() == "new"
    assert user.f is sys.modules["new_name"].f


def test_file_becomes_a_package_and_back(project: Project) -> None:
    project.load("thing_mod", "def f():\n    return 'file'\n")
    user = project.load("user_mod", "import thing_mod\ndef g():\n    return thing_mod.f()\n")
    path = project.root / "thing_mod.py"
    path.unlink()
    (project.root / "thing_mod").mkdir()
    inner = project.root / "thing_mod" / "__init__.py"
    inner.write_text("def f():\n    return 'package'\n")
    project.reloader.reload([path, inner])
    assert user.g() == "package"
    inner.unlink()
    path.write_text("def f():\n    return 'file again'\n")
    project.reloader.reload()
    assert user.g() == "file again"


def test_a_package_goes_to_another_folder_of_the_path(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.root / "other"
    other.mkdir()
    monkeypatch.syspath_prepend(str(other))
    project.write("bag.deep", "COUNTS = [1]\ndef f():\n    return COUNTS\n")
    deep = project.load("bag", "from . import deep\n").deep
    kept, before = deep.COUNTS, project.root / "bag/deep.py"
    (project.root / "bag").rename(other / "bag")
    files = [base / "bag" / n for base in (project.root, other) for n in ("__init__.py", "deep.py")]
    after = files[-1]
    prepared = project.reloader.prepare(
        {file: file.read_bytes() if file.exists() else None for file in files}
    )
    prepared.commit().undo()
    assert deep.__file__ == str(before)

    after.write_text("COUNTS = [1]\ndef f():\n    return len(COUNTS) + X\nX = 1\n")
    report = project.reloader.reload(files)
    assert report.verdicts["bag.deep"].action == "rerun"
    assert deep.f() == 2
    assert deep.COUNTS is kept
    assert deep.__file__ == str(after)
    assert sys.modules["bag"].__path__ == [str(other / "bag")]
    after.write_text("def f():\n    return 'new'\n")
    project.reloader.reload()
    assert deep.f() == "new"


def test_two_files_one_with_a_syntax_error_in_a_package(project: Project) -> None:
    (project.root / "pack").mkdir()
    project.write("pack", "from .a import f\nfrom .b import g\n")
    project.write("pack.a", "def f():\n    return 1\n")
    project.write("pack.b", "def g():\n    return 1\n")
    pack = importlib.import_module("pack")
    project.write("pack.a", "def f():\n    return 2\n")
    project.write("pack.b", "def g(:\n    return 2\n")
    with pytest.raises(ReloadError, match=r"b\.py:1"):
        project.reloader.reload()
    assert (pack.f(), pack.g()) == (1, 1)


def test_the_second_of_three_raises(project: Project) -> None:
    modules = [project.load(f"m{n}_mod", f"X = {n}\ndef f():\n    return X\n") for n in range(3)]
    project.load("dep_mod", "from m0_mod import X as A\nfrom m2_mod import X as B\nS = A + B\n")
    before = [dict(vars(module)) for module in modules]
    paths = [
        project.write(f"m{n}_mod", f"X = {n + 10}\n{'1/0' if n == 1 else ''}\n") for n in range(3)
    ]
    with pytest.raises(ReloadError, match="ZeroDivisionError"):
        project.reloader.reload(paths)
    assert [dict(vars(module)) for module in modules] == before
    assert sys.modules["dep_mod"].S == 2


def test_circular_import_with_new_names_on_both_sides(project: Project) -> None:
    project.write("ping_mod", "import pong_mod\nA = 1\ndef f():\n    return pong_mod.B\n")
    project.write("pong_mod", "import ping_mod\nB = 2\ndef g():\n    return ping_mod.A\n")
    ping = importlib.import_module("ping_mod")
    pong = sys.modules["pong_mod"]
    paths = [
        project.write(
            "ping_mod",
            "import pong_mod\nA = 10\nA2 = A + 1\ndef f():\n    return pong_mod.B, pong_mod.B2\n",
        ),
        project.write(
            "pong_mod",
            "import ping_mod\nB = 20\nB2 = B + 1\ndef g():\n    return ping_mod.A, ping_mod.A2\n",
        ),
    ]
    project.reloader.reload(paths)
    assert (ping.f(), pong.g()) == ((20, 21), (10, 11))


def test_exit_handlers_are_taken_back_and_not_doubled(project: Project) -> None:
    ran: list[str] = []
    sys.modules["ran_list"] = type(sys)("ran_list")
    sys.modules["ran_list"].ran = ran  # type: ignore[attr-defined]
    source = "import atexit\nfrom ran_list import ran\nX = 1\ndef bye():\n    ran.append('old')\natexit.register(bye)\n"
    try:
        module = project.load("exit_mod", source)
        project.write(
            "exit_mod", source.replace("X = 1", "X = 2").replace("'old'", "'new'") + "1/0\n"
        )
        with pytest.raises(ReloadError):
            project.reloader.reload()
        project.edit(
            "exit_mod", source.replace("'old'", "'new'").replace("register(bye)", "register(bye)\n")
        )
        project.replace("exit_mod", ("X = 1", "X = 3"))
        # As the interpreter would at its end, but for what others have registered.
        module.bye()
        assert ran == ["new"]
    finally:
        atexit.unregister(module.bye)
        del sys.modules["ran_list"]


def test_exit_handlers_run_once_at_the_end(project: Project) -> None:
    script = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from monarch_reload import Reloader, ReloadError
    reloader = Reloader([sys.argv[1]])
    path = Path(sys.argv[1], "bye_mod.py")
    text = "import atexit\\nX = 1\\n@atexit.register\\ndef bye():\\n    print('bye', X)\\n"
    path.write_text(text)
    import bye_mod
    path.write_text(text.replace("X = 1", "X = 2") + "atexit.register(print, 'never')\\n1/0\\n")
    try:
        reloader.reload([path])
    except ReloadError:
        print("refused")
    path.write_text(text.replace("X = 1", "X = 3").replace("'bye'", "'goodbye'"))
    reloader.reload([path])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(project.root)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split("\n")[:-1] == ["refused", "goodbye 3"], done.stderr


def test_threads_that_new_code_starts_are_named(project: Project) -> None:
    source = "import threading\nSTOP = threading.Event()\nX = 1\n"
    module = project.load("thread_mod", source)
    project.write(
        "thread_mod", source + "T = threading.Thread(target=STOP.wait, name='pump')\nT.start()\n"
    )
    prepared = project.reloader.prepare(
        {project.path("thread_mod"): project.path("thread_mod").read_bytes()}
    )
    assert prepared.report.threads == ["pump"]
    prepared.abort()
    module.STOP.set()
    for thread in threading.enumerate():
        if thread.name == "pump":
            thread.join(10)


def test_sys_path_is_put_back_with_the_rest(project: Project) -> None:
    source = "import sys\nX = 1\n"
    project.load("path_mod", source)
    before = list(sys.path)
    project.write("path_mod", source + "sys.path.append('/nowhere/at/all')\n1/0\n")
    with pytest.raises(ReloadError):
        project.reloader.reload()
    assert sys.path == before
    report = project.edit("path_mod", source + "sys.path.append('/nowhere/at/all')\n")
    assert sys.path == [*before, "/nowhere/at/all"]
    report.undo()
    assert sys.path == before


def test_a_module_that_runpy_runs_is_left_alone(project: Project) -> None:
    path = project.write("tool_mod", "def f():\n    return 1\nOUT = f()\n")
    assert runpy.run_path(str(path))["OUT"] == 1
    project.edit("tool_mod", "def f():\n    return 2\nOUT = f()\n")
    assert runpy.run_path(str(path))["OUT"] == 2
    assert runpy.run_module("tool_mod")["OUT"] == 2


def test_a_folder_is_deleted_under_its_modules(project: Project) -> None:
    (project.root / "pack").mkdir()
    project.write("pack", "")
    module = project.load("pack.leaf", "def f():\n    return 1\n")
    other = project.load("other_mod", "from pack.leaf import f\ndef g():\n    return f()\n")
    shutil.rmtree(project.root / "pack")
    project.edit("other_mod", "from pack.leaf import f\ndef g():\n    return f() + 1\n")
    assert (module.f(), other.g()) == (1, 2)


def test_a_file_that_is_written_in_two_halves(project: Project) -> None:
    """The first half does not compile; nothing changes until the second is there."""
    module = project.load("half_mod", "def f():\n    return 1\n")
    path = project.path("half_mod")
    path.write_text("def f():\n    return (2,\n")
    with pytest.raises(ReloadError):
        project.reloader.reload([path])
    assert module.f() == 1
    with path.open("a") as file:
        file.write("            3)\n")
    project.reloader.reload([path])
    assert module.f() == (2, 3)


def test_swapped_files(project: Project) -> None:
    left = project.load("left_mod", "NAME = 'left'\ndef f():\n    return NAME\n")
    right = project.load("right_mod", "NAME = 'right'\ndef f():\n    return NAME * 2\n")
    one, two = project.path("left_mod"), project.path("right_mod")
    os.rename(one, project.root / "tmp")
    os.rename(two, one)
    os.rename(project.root / "tmp", two)
    project.reloader.reload([one, two])
    assert (left.f(), right.f()) == ("rightright", "left")


@pytest.mark.parametrize("entry", ["", ".", "below"])
def test_what_a_relative_entry_led_to_is_known_by_the_text_that_was_imported(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder becomes a root with the first push, and the files are new by then."""
    folder = tmp_path / entry
    (folder / "relative_pack").mkdir(parents=True)
    file = folder / "relative_pack" / "inner.py"
    for path, number in ((folder / "relative_mod.py", 1), (file, 1)):
        path.write_text(f"def f():\n    return {number}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(entry)
    names = ("relative_mod", "relative_pack.inner")
    try:
        with Reloader([]) as reloader:
            modules = [importlib.import_module(name) for name in names]
            for path in (folder / "relative_mod.py", file):
                path.write_text("def f():\n    return 20\n")
            monkeypatch.chdir("/")
            reloader.add_root(folder)
            reloader.reload([folder / "relative_mod.py", file])
            assert [module.f() for module in modules] == [20, 20]
    finally:
        for name in (*names, "relative_pack"):
            sys.modules.pop(name, None)
