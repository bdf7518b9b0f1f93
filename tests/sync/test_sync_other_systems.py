"""An author's laptop may run no Linux: no inotify, no renameat2, no nameless files, no /proc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ELSEWHERE = """
import builtins, ctypes, os, sys, threading
from pathlib import Path

for name in ("O_TMPFILE", "copy_file_range", "posix_fallocate", "memfd_create", "pidfd_open",
             "sched_getaffinity", "posix_fadvise", "eventfd", "splice"):
    if hasattr(os, name):
        delattr(os, name)


class Libc:
    def __getattr__(self, name):
        raise AttributeError(f"symbol not found: {name}")


ctypes.CDLL = lambda *args, **options: Libc()
real_open = builtins.open


def open_elsewhere(file, *args, **options):
    if str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *args, **options)


import io
builtins.open = io.open = open_elsewhere
real_text = Path.read_text
Path.read_text = lambda path, *args: open_elsewhere(path).close() or real_text(path, *args)
"""

PUSH = """
import monarch_sync
from monarch_sync import Replica, Scanner, Watcher, Workspace, sync_local
from monarch_sync.explain import explain

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
