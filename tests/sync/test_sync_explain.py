"""Why a path is synced or not: the answer agrees with the scan, and names the line."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from monarch_sync import Scanner, Workspace
from monarch_sync.scanning.explain import Rule, explain


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_each_kind_of_reason(folder: Path, tmp_path: Path) -> None:
    put(folder, "a.py", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/x.py", "runs/1", ".monarch/x")
    put(tmp_path, "outside.py")
    (folder / "out").symlink_to(tmp_path / "outside.py")
    (folder / "inner").symlink_to("a.py")
    (folder / "linked").symlink_to("venv")
    os.mkfifo(folder / "pipe")
    workspace = Workspace({folder: "code"}, ignore=["runs/"])

    def code(name: str) -> tuple[bool, str]:
        found = explain(workspace, folder / name)
        return found.is_in, found.code

    assert code("a.py") == (True, "plain")
    assert explain(workspace, folder / "a.py").remote == "code/a.py"
    assert code("") == (True, "root")
    assert code("nothing.py") == (False, "missing")
    assert code("../outside.py") == (False, "outside")
    assert code("__pycache__/a.pyc") == (False, "never")
    assert code("venv/x.py") == (False, "environment")
    assert code("runs/1") == (False, "workspace")
    assert code(".monarch/x") == (False, "reserved")
    assert code("out") == (False, "unfit")
    assert f"absolute path '{tmp_path / 'outside.py'}'" in explain(workspace, folder / "out").reason
    assert code("pipe") == (False, "unfit")
    assert code("inner") == (True, "plain")
    assert code("linked/x.py") == (False, "behind-link")


def test_the_deciding_line(folder: Path) -> None:
    put(folder, "a.log", "keep.log", "build/x", "deep/b.log", "deep/c.txt", "secret", "d.tmp")
    (folder / ".gitignore").write_text("# a comment\n\n*.log\n!keep.log\nbuild/\n*.tmp\n")
    (folder / "deep/.gitignore").write_text("!*.log\nc.*\n")
    (folder / ".monarchignore").write_text("/secret\n!d.tmp\n")
    workspace = Workspace({folder: ""})
    expected = {
        "a.log": (False, Rule(".gitignore", 3, "*.log")),
        "keep.log": (True, Rule(".gitignore", 4, "!keep.log")),
        "build/x": (False, Rule(".gitignore", 5, "build/")),
        "deep/b.log": (True, Rule("deep/.gitignore", 1, "!*.log")),
        "deep/c.txt": (False, Rule("deep/.gitignore", 2, "c.*")),
        "secret": (False, Rule(".monarchignore", 1, "/secret")),
        "d.tmp": (True, Rule(".monarchignore", 2, "!d.tmp")),
    }
    for name, (is_in, rule) in expected.items():
        found = explain(workspace, folder / name)
        assert (found.is_in, found.rule) == (is_in, rule), str(found)


def test_what_git_tracks_and_what_only_this_clone_ignores(folder: Path) -> None:
    git(folder, "init", "-q")
    put(folder, "kept.log", "other.log", "mine.txt", "built/out/x")
    git(folder, "add", "-f", "kept.log", "built/out/x")
    (folder / ".gitignore").write_text("*.log\nbuilt/\n")
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/exclude").write_text("mine.txt\n")
    workspace = Workspace({folder: ""})
    kept = explain(workspace, folder / "kept.log")
    assert (kept.is_in, kept.code) == (True, "tracked")
    assert "git tracks it, though '*.log' (.gitignore:1) would leave it out" in kept.reason
    assert explain(workspace, folder / "built/out/x").code == "tracked"
    assert not explain(workspace, folder / "other.log").is_in
    mine = explain(workspace, folder / "mine.txt")
    assert (mine.is_in, mine.rule) == (False, Rule(".git/info/exclude", 1, "mine.txt"))


PATTERNS = [
    "*.log",
    "!*.log",
    "/a",
    "b/",
    "a/b",
    "**/c.txt",
    "!c.txt",
    "d*",
    "a/**",
    "!a/",
    "?.txt",
]


def test_another_repository_inside_is_asked_for_its_own_rules(folder: Path) -> None:
    put(folder, "inner/a.log", "inner/deep/b.tmp")
    for repository in (folder, folder / "inner"):
        git(repository, "init", "-q")
    (folder / ".gitignore").write_text("a.*\n")
    (folder / "rules").write_text("*.tmp\n")
    (folder / "inner/deep/.gitignore").symlink_to("../../rules")
    (folder / "inner/.git/info/exclude").write_text("*.log\n*.tmp\n")

    def rule(name: str) -> Rule | None:
        return explain(Workspace({folder: ""}), folder / name).rule

    assert rule("inner/a.log") == Rule("inner/.git/info/exclude", 1, "*.log")
    assert rule("inner/deep/b.tmp") == Rule("inner/.git/info/exclude", 2, "*.tmp")


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_the_scan(seed: int, folder: Path) -> None:
    rand = random.Random(seed)
    names = ("a", "b", "c.txt", "d.log", "e.log")
    paths = {
        "/".join(rand.choice("ab") for _ in range(rand.randrange(3))) + f"/{rand.choice(names)}"
        for _ in range(14)
    }
    for path in paths:
        if not (folder / path.strip("/")).is_dir():
            try:
                put(folder, path.strip("/"))
            except (FileExistsError, NotADirectoryError):
                pass
    for where in (".gitignore", "a/.gitignore", ".monarchignore"):
        if (folder / where).parent.is_dir():
            lines = rand.sample(PATTERNS, rand.randrange(4))
            (folder / where).write_text("\n".join(lines) + "\n")
    workspace = Workspace({folder: ""})
    manifest = Scanner(workspace).scan().manifest
    for one in sorted(folder.rglob("*")):
        found = explain(workspace, one)
        relative = str(one.relative_to(folder))
        assert found.is_in == (relative in manifest), str(found)
        if not found.is_in:
            assert found.rule is not None, str(found)
