"""What git says of the folder of a run, and that nothing of the folder runs meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from monarch.runs.record.git import commit_here


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("* filter=theirs diff=theirs\n")
    (folder / "file").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    monkeypatch.chdir(folder)
    return folder


def test_the_commit_is_told(repository: Path) -> None:
    assert commit_here() == git(repository, "rev-parse", "HEAD")[:12]


def test_outside_of_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_here() is None


def test_no_program_that_the_repository_names_is_run(repository: Path, tmp_path: Path) -> None:
    """The file is changed, so that whoever asked for its state would run the filter."""
    program = tmp_path / "program"
    ran = tmp_path / "ran"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor", "filter.theirs.clean", "filter.theirs.smudge", "filter.theirs.process",
        "core.pager", "diff.external", "diff.theirs.command", "core.sshCommand", "core.editor",
    ):  # fmt: skip
        git(repository, "config", key, str(program))
    hooks = repository / ".git" / "hooks"
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / hook).write_text(program.read_text())
        (hooks / hook).chmod(0o755)
    (repository / "file").write_text("two\n")
    assert commit_here()
    assert not ran.exists()


def test_a_missing_commit_is_not_fetched(repository: Path, tmp_path: Path) -> None:
    """A partial clone fetches what it lacks from a remote, which names programs."""
    ran = tmp_path / "ran"
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "core.repositoryFormatVersion", "1")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "remote.origin.url", f"ext::sh -c touch% {ran}")
    git(repository, "config", "protocol.ext.allow", "always")
    git(repository, "config", "remote.origin.uploadpack", f"touch {ran}; false")
    commit = git(repository, "rev-parse", "HEAD")
    (repository / ".git" / "objects" / commit[:2] / commit[2:]).unlink()
    commit_here()
    assert not ran.exists()
