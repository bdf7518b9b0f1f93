"""Removes folders, after a proof that they are ours.

A path that was read from a file proves nothing: the file may be damaged, or a stranger's. A folder
is removed only if it lies below a folder that we keep for that, if no symlink leads to it, if it
belongs to this user, and if it has a mark: a file that we put there, or a name that only we give.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

MARK = ".made-by-monarch"
"""The file that ``make_folder`` leaves in a folder."""


class NotOurs(OSError):
    """A folder was not touched, because nothing proves that monarch has made it."""

    def __str__(self) -> str:
        return str(self.args[0])


def make_folder(path: str) -> None:
    """Make a folder of mode 0700, and its parents, with the mark by which ``remove_folder`` knows
    it."""
    os.makedirs(path, 0o700, exist_ok=True)
    fd = os.open(os.path.join(path, MARK), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.close(fd)


def check_folder(
    path: str | os.PathLike[str],
    below: str | os.PathLike[str],
    *,
    mark: str = "",
    name: str = "",
) -> str:
    """Return the real path of one of our folders below ``below``.

    The folder must contain the file ``mark``, if given, and its name must match the pattern
    ``name``, if given. Raises ``NotOurs`` for any other folder, and ``FileNotFoundError`` for a
    missing one.
    """
    assert mark or name, "a folder without a mark could be anybody's"
    root, whole = os.path.abspath(below), os.path.abspath(path)
    parts = Path(os.path.relpath(whole, root)).parts
    if not parts or parts[0] == os.pardir:
        raise NotOurs(f"{path} is not in {below}")
    if name and not re.fullmatch(name, parts[-1]):
        raise NotOurs(f"{path} has no name that monarch gives")
    folder = os.path.realpath(root)
    for part in parts:
        folder = os.path.join(folder, part)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise NotOurs(f"{folder} is no folder, or a link")
        if status.st_uid != os.geteuid():
            raise NotOurs(f"{folder} belongs to another user (uid {status.st_uid})")
    if mark:
        try:
            status = os.lstat(os.path.join(folder, mark))
        except FileNotFoundError:
            raise NotOurs(f"{path} was not made by monarch: it has no {mark}") from None
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise NotOurs(f"{path}/{mark} is no file of this user's")
    return folder


def remove_folder(
    path: str | os.PathLike[str],
    below: str | os.PathLike[str],
    *,
    mark: str = "",
    name: str = "",
    ignore_errors: bool = True,
) -> None:
    """Remove a folder and its contents; do nothing if it does not exist.

    Raises ``NotOurs`` as ``check_folder`` does. Files that the system does not let us remove stay;
    without ``ignore_errors`` they raise ``OSError``.
    """
    try:
        folder = check_folder(path, below, mark=mark, name=name)
    except FileNotFoundError:
        return
    shutil.rmtree(folder, ignore_errors=ignore_errors)
