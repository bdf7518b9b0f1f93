"""An author's laptop may run no Linux: no inotify, no renameat2, no nameless files, no /proc. And
a file system may have no locks, or not copy by itself."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_sync import Replica, ReplicaBusy, Workspace, sync_local
from monarch_sync.content.disk import Disk
from tests.elsewhere import ELSEWHERE

PUSH = """
import monarch_sync
from monarch_sync import Replica, Scanner, Watcher, Workspace, sync_local
from monarch_sync.scanning.explain import explain

here = Path(sys.argv[1])
project = here / "project"
workspace = Workspace({project: ""})
replica = Replica(here / "copy")
large = bytes(range(256)) * 40_000


def check(expected):
    report = sync_local(workspace, replica)
    assert report.ok, report
    found = {p.name: p.read_bytes() for p in (here / "copy").iterdir() if p.is_file()}
    assert found == expected, {name: len(data) for name, data in found.items()}


project.mkdir()
(project / "model.py").write_bytes(b"1")
(project / "large.bin").write_bytes(large)
check({"model.py": b"1", "large.bin": large})
(project / "model.py").write_bytes(b"2")
(project / "large.bin").rename(project / "moved.bin")
(project / "other.bin").write_bytes(large)
check({"model.py": b"2", "moved.bin": large, "other.bin": large})
(project / "other.bin").write_bytes(large[:5_000_000] + b"edited" + large[5_000_000:])
check({"model.py": b"2", "moved.bin": large, "other.bin": (project / "other.bin").read_bytes()})
assert explain(workspace, str(project / "model.py")).is_in

watcher = Watcher(workspace)
assert watcher.changes() is None
assert watcher.polls_because == ""
looks = iter(watcher)
assert next(looks) == set() == next(looks)  # what was there, and once more behind its beginning
(project / "model.py").write_bytes(b"3")
assert next(looks) == {project.resolve() / "model.py"}
check({"model.py": b"3", "moved.bin": large, "other.bin": (project / "other.bin").read_bytes()})
watcher.close()
assert list(looks) == []
replica.close()
print("done")
"""


def test_an_author_and_a_replica_without_linux(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE + PUSH, str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_where_the_file_system_has_no_locks_a_replica_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    (tmp_path / "project").mkdir()
    (tmp_path / "project/model.py").write_bytes(b"1")
    first = Replica(tmp_path / "copy")
    with pytest.raises(ReplicaBusy):
        Replica(tmp_path / "copy")
    monkeypatch.setattr(fcntl, "flock", flock)
    replica = Replica(tmp_path / "copy")
    sync_local(Workspace({tmp_path / "project": ""}), replica)
    assert (tmp_path / "copy/model.py").read_bytes() == b"1"
    replica.close()
    first.close()


def _raises(code: int) -> Callable[..., int]:
    def copy(source: int, target: int, count: int, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    return copy


def _does_nothing(source: int, target: int, count: int, offset: int) -> int:
    return 0


def _does_some_then_not(source: int, target: int, count: int, offset: int) -> int:
    if offset:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.write(target, os.pread(source, 100_000, 0))


@pytest.mark.parametrize(
    "how",
    [
        *map(_raises, (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)),
        _does_nothing,
        _does_some_then_not,
    ],
)
def test_a_large_file_is_copied_where_the_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., int]
) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "one").write_bytes(content)
    monkeypatch.setattr(os, "copy_file_range", how)
    Disk().copy(tmp_path / "one", tmp_path / "other", 0o644)
    assert (tmp_path / "other").read_bytes() == content


def test_a_copy_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(bytes(3_000_000))
    monkeypatch.setattr(os, "copy_file_range", _raises(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        Disk().copy(tmp_path / "one", tmp_path / "other", 0o644)


NAMES_IN_ASCII = """
import os, sys
from pathlib import Path
from monarch_sync import PushRefused, Replica, Workspace, sync_local

here = Path(sys.argv[1])
workspace, replica = Workspace({here / "project": ""}), Replica(here / "replica")
assert sync_local(workspace, replica).ok
name = b"caf\\xc3\\xa9"
(here / "project" / os.fsdecode(name)).touch()
for _ in range(2):
    try:
        sync_local(workspace, replica)
    except PushRefused as error:
        print(ascii(str(error)))
os.unlink(bytes(here / "project") + b"/" + name)
(here / "project/plain").touch()
assert sync_local(workspace, replica).ok
print(sorted(os.listdir(here / "replica")))
"""


def test_a_host_whose_file_names_are_no_utf8_says_what_to_do(folder: Path) -> None:
    (folder / "a.py").touch()
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", NAMES_IN_ASCII, str(folder.parent)], env={**os.environ, **plain},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    refused, again, listed = done.stdout.splitlines()
    assert refused == again
    assert "caf" in refused
    assert "file names are in ascii there" in refused
    assert "PYTHONUTF8=1" in refused
    assert listed == "['a.py', 'plain']"
