"""Changes to a tree, as they happen while a person works in it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

NAMES = ("a", "b", "c.py", "d", "D", "x.log", os.fsdecode(b"\xff"), "new\nline")


class Place(NamedTuple):
    """A tree, two paths in it, and what else is left to chance."""

    folder: Path
    path: Path
    other: Path
    rand: random.Random


def happen(folder: Path, rand: random.Random) -> int:
    """One random event in a tree; 1 if it could happen, else 0."""
    path = folder.joinpath(*rand.choices(NAMES, k=rand.randint(1, 4)))
    other = folder.joinpath(*rand.choices(NAMES, k=rand.randint(1, 3)))
    act = rand.choice(_ACTS)
    try:
        act(Place(folder, path, other, rand))
    except OSError:
        return 0  # a file where a folder is needed, a folder that is not empty, nothing there
    return 1


def switch_branch(folder: Path, state: int) -> None:
    """Some hundred files of one state go, those of another come."""
    for i in range(300):
        path = folder / f"pkg{i % 7}" / f"branch{state % 2}" / str(i)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % (state % 2))
    for package in folder.glob("pkg*"):
        shutil.rmtree(package / f"branch{1 - state % 2}", ignore_errors=True)


def _write(at: Place) -> None:
    at.path.parent.mkdir(parents=True, exist_ok=True)
    at.path.write_bytes(at.rand.randbytes(at.rand.randint(0, 20)))


def _append(at: Place) -> None:
    with open(at.path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"more")


def _save(at: Place) -> None:
    beside = at.path.with_name(".swap")
    beside.write_bytes(at.rand.randbytes(8))
    beside.rename(at.path)


def _same_second_same_size(at: Place) -> None:
    status = at.path.stat()
    at.path.write_bytes(at.rand.randbytes(status.st_size))
    os.utime(at.path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove(at: Place) -> None:
    if at.path.is_dir() and not at.path.is_symlink():
        shutil.rmtree(at.path)
    else:
        at.path.unlink()


def _move(at: Place) -> None:
    at.path.rename(at.other)


def _change_case(at: Place) -> None:
    at.path.rename(at.path.with_name(at.path.name.swapcase()))


def _out_and_in(at: Place) -> None:
    outside = at.folder.with_name("outside")
    at.path.rename(outside)
    try:
        outside.rename(at.other)
    except OSError:
        outside.rename(at.path)


def _make_tree(at: Place) -> None:
    inner = at.path / "n1" / "n2"
    inner.mkdir(parents=True)
    for i in range(5):
        (inner / str(i)).write_bytes(b"%d" % i)


def _link(at: Place) -> None:
    """A link in the place of what was there."""
    if at.path.is_dir() and not at.path.is_symlink():
        shutil.rmtree(at.path)
    at.path.unlink(missing_ok=True)
    elsewhere = at.folder.with_name("elsewhere")
    elsewhere.mkdir(exist_ok=True)
    at.path.symlink_to(at.rand.choice(["a", "../b", "d", elsewhere, "c.py/a"]))


def _hard_link(at: Place) -> None:
    at.other.hardlink_to(at.path)


def _file_becomes_folder(at: Place) -> None:
    at.path.unlink()
    at.path.mkdir()
    (at.path / "a").write_bytes(b"1")


def _change_mode(at: Place) -> None:
    at.path.chmod(at.rand.choice([0o755, 0o700, 0o644 if at.path.is_file() else 0o750]))


def _ignore(at: Place) -> None:
    (at.path.parent / ".gitignore").write_text(at.rand.choice(["*.log\n", "", "/d\n"]))


_ACTS: tuple[Callable[[Place], None], ...] = (
    *[_write] * 8, *[_append] * 4, *[_save] * 4, *[_same_second_same_size] * 2, *[_remove] * 3,
    *[_move] * 5, _change_case, *[_out_and_in] * 2, *[_make_tree] * 2, _link, *[_hard_link] * 2,
    _file_becomes_folder, _change_mode, *[_ignore] * 1,
)  # fmt: skip
