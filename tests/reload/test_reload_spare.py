"""What cannot be prepared in place is imported by a fresh process, which decides."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from monarch_reload import NeedsRespawn, ReloadError
from monarch_reload.adopt import Adoption
from monarch_reload.source.source import ModuleSource
from monarch_reload.trial.budget import Budget

from .conftest import Project

# What it has taken is not to be seen from outside, and cannot be taken out again.
_ONCE = """
    import array
    _TAKEN = array.array("q")
    def once(name):
        if hash(name) in _TAKEN:
            raise ValueError(f"{name} is there already")
        _TAKEN.append(hash(name))
        return name
    """


def test_what_only_a_fresh_process_imports_needs_one(project: Project) -> None:
    project.load("spare_once", _ONCE)
    user = project.load("spare_user", "from spare_once import once\nA = once('a')\nB = 1\n")
    with pytest.raises(NeedsRespawn, match=r"only a fresh process imports it.*there already"):
        project.edit("spare_user", "from spare_once import once\nA = once('a') + ''\nB = 2\n")
    assert (user.A, user.B) == ("a", 1)


def test_prepare_says_respawn_and_changes_nothing(project: Project) -> None:
    project.load("spare_twice", _ONCE)
    user = project.load("spare_of_twice", "import spare_twice as s\nA = s.once('a')\nB = 1\n")
    text = "import spare_twice as s\nA = s.once('a') + ''\nB = 2\n"
    prepared = project.prepare(spare_of_twice=text)
    assert prepared.verdicts["spare_of_twice"].action == "respawn"
    prepared.commit()
    assert user.B == 1
    assert project.prepare(spare_of_twice=text).needs_respawn


@pytest.mark.parametrize("line", ["A = once('b') + undefined.x", "raise RuntimeError('no')"])
def test_what_no_process_imports_is_refused_with_its_line(project: Project, line: str) -> None:
    project.load("spare_three", _ONCE)
    user = project.load("spare_wrong", "from spare_three import once\nA = once('b')\n")
    with pytest.raises(ReloadError) as caught:
        project.edit("spare_wrong", f"from spare_three import once\n\n{line}\n")
    assert not isinstance(caught.value, NeedsRespawn)
    assert (caught.value.path, caught.value.line) == (str(project.path("spare_wrong")), 3)
    assert user.A == "b"


def test_an_error_that_is_the_codes_own_wins_over_one_of_the_reloader(project: Project) -> None:
    """The line that fails in a fresh process is said, not the one that failed here."""
    project.load("spare_four", _ONCE)
    project.load("spare_both", "from spare_four import once\nA = once('c')\n")
    with pytest.raises(ReloadError, match="ZeroDivisionError") as caught:
        project.edit("spare_both", "from spare_four import once\nA = once('c') + ''\nB = 1 / 0\n")
    assert (caught.value.line, caught.value.text) == (3, "B = 1 / 0")


def test_a_bare_error_of_the_reloader_is_no_refusal(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project.load("spare_bare", "A = 1\n")

    def trips(*_: object) -> None:
        raise AttributeError("the reloader's own")

    monkeypatch.setattr(Adoption, "adopt", trips)
    with pytest.raises(NeedsRespawn, match="AttributeError: the reloader's own"):
        project.edit("spare_bare", "A = 2\n")
    assert module.A == 1


def test_what_fails_in_the_commit_needs_a_fresh_process(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project.load("spare_commit", "A = 1\n")

    def trips(*_: object) -> None:
        raise AttributeError("the reloader's own")

    monkeypatch.setattr(Adoption, "settle", trips)
    with pytest.raises(NeedsRespawn, match="AttributeError: the reloader's own"):
        project.edit("spare_commit", "A = 2\n")
    assert module.A == 1
    assert project.prepare(spare_commit="A = 2\n").needs_respawn


def test_modules_that_import_each_other_in_circles(project: Project) -> None:
    """The package is reached by its own modules while it is half made."""
    (project.root / "spare_circle").mkdir()
    make = "def make(f):\n    return f\n"
    user = "import spare_circle as c\n@c.make\ndef use():\n    return 1\n"
    project.write("spare_circle.making", make)
    project.write("spare_circle.using", user)
    package = project.load("spare_circle", "from .making import *\nfrom .using import use\n")
    project.write("spare_circle.making", "def make(*, num):\n    return lambda f: f\n")
    project.write("spare_circle.using", user.replace("@c.make", "@c.make(num=2)"))
    try:
        project.reloader.reload()
    except NeedsRespawn:
        assert package.use() == 1
    with pytest.raises(ReloadError) as caught:
        project.edit("spare_circle.using", user.replace("@c.make", "@c.make(size=2)"))
    assert not isinstance(caught.value, NeedsRespawn)


def test_the_fresh_process_sees_the_files_that_are_to_come(project: Project) -> None:
    project.load("spare_five", _ONCE)
    user = project.load("spare_pending", "from spare_five import once\nA = once('d')\n")
    gone = project.load("spare_gone", "X = 1\n")
    text = "from spare_five import once\nfrom spare_new import N\nA = once('d') * N\n"
    prepared = project.prepare(spare_pending=text, spare_new="N = 2\n")
    assert prepared.verdicts["spare_pending"].action == "respawn"
    with pytest.raises(ReloadError, match="No module named 'spare_gone'") as caught:
        project.prepare(
            spare_pending=f"{text}import spare_gone\n", spare_new="N = 2\n", spare_gone=None
        )
    assert (caught.value.line, caught.value.text) == (4, "import spare_gone")
    with pytest.raises(ReloadError, match="SyntaxError") as caught:
        project.prepare(spare_pending=text, spare_new="N = = 2\n")
    assert (caught.value.path, caught.value.line) == (str(project.path("spare_new")), 1)
    assert (user.A, gone.X) == ("d", 1)


def test_a_verdict_does_not_take_much_longer_than_an_import(
    project: Project,
) -> None:
    project.reloader.budget = partial(Budget, times=0.0, least_seconds=0.0)
    module = project.load("spare_slow", "A = 1\n")
    with pytest.raises(NeedsRespawn, match="to find what follows from the edit takes more than"):
        project.edit("spare_slow", "A = 2\n")
    with pytest.raises(ReloadError, match="ZeroDivisionError") as caught:
        project.edit("spare_slow", "A = 1 / 0\n")
    assert caught.value.line == 1
    assert module.A == 1


def test_beyond_the_budget_nothing_is_compiled_here(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.reloader.budget = partial(Budget, times=0.0, least_seconds=0.0)
    module = project.load("spare_release", "A = 1\n")
    compiled: list[str] = []
    codes = ModuleSource.codes.func
    monkeypatch.setattr(
        ModuleSource, "codes", property(lambda self: (compiled.append(self.path), codes(self))[1])
    )
    with pytest.raises(NeedsRespawn):
        project.edit("spare_release", "A = 2\n")
    assert not compiled
    with pytest.raises(ReloadError, match="SyntaxError") as caught:
        project.edit("spare_release", "A = 2\nB = = 2\n")
    assert (caught.value.line, module.A) == (2, 1)


@pytest.mark.long
def test_what_new_code_does_itself_is_not_in_the_budget(
    project: Project,
) -> None:
    project.reloader.budget = partial(Budget, times=0.0, least_seconds=0.5)
    module = project.load("spare_working", "A = 1\n")
    work = "import time\nA = 2\nB = 3\nEND = time.thread_time() + 1\n"
    work += "while time.thread_time() < END: pass\n"
    project.edit("spare_working", work)
    assert (module.A, module.B) == (2, 3)


def test_a_fresh_process_keeps_its_words_and_files_to_itself(
    project: Project, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project.load("spare_six", _ONCE)
    project.load("spare_loud", "from spare_six import once\nA = once('e')\n")
    with pytest.raises(NeedsRespawn):
        project.edit("spare_loud", "from spare_six import once\nprint('loud')\nA = once('e') * 2\n")
    out, err = capfd.readouterr()
    assert out.count("loud") == 1  # of the attempt in this process
    assert not err
    assert not [name for name in os.listdir(project.root) if name == "__pycache__"] or (
        sys.dont_write_bytecode is False
    )
