"""Random work with git and editors in a tree: what the watcher leads to is what a scan finds."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_sync import Workspace
from tests.sync.test_sync_watch import Asking

NAMES = ("a.py", "b.py", "pkg", "sub", "x.log", "lib")
RULES = ("", "*.log\n", "lib/\n", "/pkg/sub\n", "*\n!*.py\n!*/\n")
IDENTITY = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip

Act = Callable[["Work"], object]


class Work:
    """A repository, and somebody who works in it at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rand = random.Random(seed)
        self.elsewhere = folder.with_name("elsewhere")
        self.elsewhere.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> bool:
        command = ["git", *words]
        environ = {**os.environ, **IDENTITY, "HOME": str(self.folder.parent)}
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True)
        return done.returncode == 0

    def act(self) -> None:
        try:
            self.rand.choice(ACTS)(self)
        except (OSError, IndexError):
            pass  # a file where a folder is needed, nothing there

    def new(self) -> Path:
        return self.folder.joinpath(*self.rand.choices(NAMES, k=self.rand.randint(1, 3)))

    def some(self, *, is_dir: bool = False) -> Path:
        found = (path for path in sorted(self.folder.rglob("*")) if ".git" not in path.parts)
        return self.rand.choice([p for p in found if p.is_dir() == is_dir and not p.is_symlink()])

    def content(self) -> bytes:
        return self.rand.randbytes(self.rand.randint(0, 9))

    def write(self) -> None:
        path = self.new()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content())

    def save_beside(self) -> None:
        """As vim does it."""
        path = self.some()
        backup = path.with_name(f"{path.name}~")
        path.rename(backup)
        path.write_bytes(self.content())
        backup.unlink()

    def replace_unseen(self) -> None:
        """Another file, of the same size and times."""
        path, other = self.some(), self.folder / "other"
        status = path.stat()
        other.write_bytes(self.rand.randbytes(status.st_size))
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.rename(path)

    def swap(self) -> None:
        """Two folders trade places."""
        one, other = self.some(is_dir=True), self.some(is_dir=True)
        outside = self.folder.with_name("outside")
        one.rename(outside)
        try:
            other.rename(one)
        finally:
            outside.rename(one if not one.exists() else other)

    def switch(self) -> None:
        branch = self.rand.choice(["main", "one", "two"])
        if not self.git("checkout", "-qf", branch):
            self.git("checkout", "-qb", branch)

    def rule(self) -> None:
        place = self.rand.choice([self.folder, self.some(is_dir=True)])
        (place / ".gitignore").write_text(self.rand.choice(RULES))


ACTS: tuple[Act, ...] = (
    *[Work.write] * 5, *[Work.save_beside] * 2, Work.replace_unseen, *[Work.swap] * 2,
    *[Work.switch] * 2, *[Work.rule] * 2,
    lambda at: at.git("add", "-A") and at.git("commit", "-qm", "1"),
    lambda at: at.git("add", "-f", str(at.some())),
    lambda at: at.git("rm", "-qf", "--cached", str(at.some())),
    lambda at: at.git("stash", "-qu"),
    lambda at: at.git("stash", "pop", "-q"),
    lambda at: at.git("rebase", "-q", "main") or at.git("rebase", "--abort"),
    lambda at: at.git("worktree", "add", "-qf", "--detach", "tree"),
    lambda at: at.git("worktree", "remove", "-f", "tree"),
    lambda at: at.git("reset", "-q", "--hard"),
    lambda at: at.git("clean", "-fdq"),
    lambda at: at.some(is_dir=True).rename(at.new()),
    lambda at: at.new().hardlink_to(at.some()),
    lambda at: at.new().symlink_to(at.rand.choice(["pkg", "../b.py", at.elsewhere])),
    lambda at: (at.some(is_dir=True) / "pyvenv.cfg").touch(),
    lambda at: next(at.folder.rglob("pyvenv.cfg"), at.folder / "none").unlink(),
    lambda at: at.some().chmod(at.rand.choice([0o600, 0o755])),
    lambda at: os.utime(at.some(), (1e9, 1e9)),
    lambda at: at.some().unlink(),
)  # fmt: skip


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.huge) for n in range(3, 40))]
)
def test_random_work_with_git_is_all_known(folder: Path, seed: int) -> None:
    work = Work(folder, seed)
    for _ in range(10):
        work.act()
    asking = Asking(Workspace({folder: ""}))
    try:
        for _ in range(20):
            asking.look()
            for _ in range(work.rand.choice([1, 1, 2, 5])):
                work.act()
    finally:
        asking.watcher.close()
