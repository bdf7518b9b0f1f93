"""What is mounted inside a replica cannot be replaced, and holds nothing up for ever; what
is mounted inside a workspace goes without being deleted, and comes without an event."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch_sync.mounts import mounted_inside

NAMESPACE = ["unshare", "--mount"]  # its mounts end with it

PUSHES = """
import os, subprocess, sys
from pathlib import Path
from monarch_sync import Replica, SyncFailed, Workspace, sync_local
from monarch_sync.messages import Refused

here = Path(sys.argv[1])
folder, replica = here / "project", Replica(here / "replica")

def put(path, text):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)

def push():
    try:
        sync_local(Workspace({folder: ""}), replica)
        return ""
    except Exception as error:
        return str(error)

def mount(path):
    at, source = here / "replica" / path, here / "source"
    source.mkdir(exist_ok=True)
    if at.is_file():
        source = source / "file"
        source.write_text("theirs")
    subprocess.run(["mount", "--bind", source, at], check=True)

for path in ("one", "gone", "data/a", "old/b"):
    put(path, "1")
assert not push()
for path in ("one", "gone", "data", "old"):
    mount(path)

put("one", "2")
put("other", "2")
said = push()
assert "something is mounted here" in said and str(here / "replica/one") in said, said
assert not (here / "replica/other").exists()

put("one", "theirs")  # as it stands there: nothing to replace
assert not push(), push()
assert (here / "replica/other").exists()

(folder / "gone").unlink()
said = push()
assert "something is mounted here" in said and str(here / "replica/gone") in said, said
subprocess.run(["umount", here / "replica/gone"], check=True)
assert not push(), push()

# A folder stays where something is mounted, and what was in it comes again at its new place.
(folder / "data/a").unlink()
(folder / "data").rmdir()
(folder / "old").rename(folder / "new")
assert not push(), push()
assert (here / "replica/new/b").read_text() == "1"
assert (here / "replica/data").is_dir() and (here / "replica/old").is_dir()
print("done")
"""


WATCHES = """
import subprocess, sys
from pathlib import Path
from monarch_sync import Manifest, Scanner, Watcher, Workspace

here = Path(sys.argv[1])
folder = here / "project"
data = folder / "data"
data.mkdir()
(folder / "other").mkdir()
(folder / "other/a").write_text("1")
workspace = Workspace({folder: ""})
watcher, scanner = Watcher(workspace), Scanner(workspace)
held = Manifest()

def look(watches=True):
    global held
    touched = watcher.changes() if watches else None
    scan = scanner.scan() if touched is None else scanner.rescan(touched)
    scan = scan.over(held)
    held = scan.manifest
    return scan.problems

def mount():
    subprocess.run(["mount", "-t", "tmpfs", "none", data], check=True)

for way in ("", "--lazy"):
    mount()
    (data / "inner").mkdir()
    (data / "inner/a").write_text("1")
    look()
    assert "data/inner/a" in held
    subprocess.run(["umount", *filter(None, [way]), data], check=True)
    for watches in (True, False, True):
        (problem,) = look(watches)
        assert problem.path == "data" and problem.is_kept, problem
        assert "on another disk than before" in problem.reason
        assert "data/inner/a" in held
    mount()
    (data / "b").write_text("2")
    assert not look() and "data/b" in held and "data/inner" not in held
    (data / "c").write_text("3")
    assert not look() and "data/c" in held, "a disk that came over a watched folder is watched"
    (data / "b").unlink()
    (data / "c").unlink()
    assert not look() and not held.below("data"), "what is deleted is deleted"
    subprocess.run(["umount", data], check=True)
    (data / "d").write_text("4")
    assert not look() and "data/d" in held, "what has something in it is as it is"
    (data / "d").unlink()
    (folder / "other/a").unlink()
    assert not look() and not held.below("data") and not held.below("other")
    (folder / "other/a").write_text("1")
watcher.close()
print("done")
"""


@pytest.mark.parametrize("script", [PUSHES, WATCHES], ids=["in a replica", "in a workspace"])
def test_what_is_mounted_is_neither_lost_nor_missed(tmp_path: Path, script: str) -> None:
    probe = [*NAMESPACE, "mount", "--bind", tmp_path, tmp_path]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    (tmp_path / "project").mkdir()
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr


def test_the_table_of_mounts_is_read_with_all_that_is_escaped_in_it(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    escaped = str(root).replace(" ", "\\040")
    places = ["/", f"{escaped}/in\\134side", f"{escaped}x", f"{escaped}/c/d"]
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"36 35 98:0 /r {place} rw - ext4 /dev/r rw\n" for place in places))
    assert mounted_inside(str(root), str(table)) == {"in\\side", "c/d"}
    assert mounted_inside(str(tmp_path / "link"), str(table)) == {"in\\side", "c/d"}
    assert mounted_inside(str(root), str(tmp_path / "nowhere")) == set()
