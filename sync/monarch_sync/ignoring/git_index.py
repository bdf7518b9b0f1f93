"""GitIndex: the paths that git tracks, read straight from `.git/index`.

A tracked file belongs to the workspace even if an ignore rule matches it, and no ignore library
knows which files are tracked. The format is git's own `gitformat-index`, versions 2 to 4; of a
split index, only the entries in the index file itself are read.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_HEAD = struct.Struct(">4sII")
_FIXED = 40  # bytes of stat data in front of the object name


def find_git_dir(folder: str) -> tuple[str, str] | None:
    """Return (work tree root, git directory) of the repository that contains `folder`; None if none
    does."""
    while True:
        git_dir = git_dir_of(folder)
        if git_dir is not None:
            return folder, git_dir
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def git_dir_of(work_tree: str) -> str | None:
    """Return the git directory of a work tree's root; None if the folder is not such a root.
    Follows a ``.git`` file with a ``gitdir:`` line."""
    dot_git = os.path.join(work_tree, ".git")
    try:
        if stat.S_ISDIR(os.stat(dot_git).st_mode):
            return dot_git
        with open(dot_git, encoding="utf-8", errors="surrogateescape") as file:
            line = file.read(4096)
    except OSError:
        return None
    if not line.startswith("gitdir:"):
        return None
    return os.path.normpath(os.path.join(work_tree, line[len("gitdir:") :].strip()))


def common_dir(git_dir: str) -> str:
    """Return the git directory that has a repository's rules and configuration. For a work tree
    that ``git worktree`` has added, it is the git directory of the main work tree.
    """
    try:
        with open(f"{git_dir}/commondir", encoding="utf-8", errors="surrogateescape") as file:
            return os.path.join(git_dir, file.read().strip())
    except OSError:
        return git_dir


def tracked_paths(git_dir: str) -> frozenset[str]:
    """Return the paths in the index, relative to the work tree's root; none if nothing was ever
    added.

    Raises ``OSError`` if the index exists and cannot be read, or is no index: then it is not known
    what git tracks.
    """
    path = os.path.join(git_dir, "index")
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    try:
        return frozenset(os.fsdecode(name) for name in parse(raw, _name_bytes(git_dir)))
    except (ValueError, IndexError, struct.error):
        raise OSError(errno.EIO, "it is damaged", path) from None


def paths_below(folder: Path, work_tree: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that are inside ``folder``, relative to ``folder``. The given ``paths`` are
    relative to ``work_tree``; all others are left out.
    """
    prefix = "" if work_tree == str(folder) else f"{folder.relative_to(work_tree)}/"
    return [path[len(prefix) :] for path in paths if path.startswith(prefix)]


def parse(raw: bytes, name_bytes: int = 20) -> list[bytes]:
    """Return the paths in the bytes of an index file. `name_bytes`: the length of an object name,
    20 or 32."""
    magic, version, count = _HEAD.unpack_from(raw)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError(f"not an index of version 2 to 4: {magic!r} {version}")
    paths: list[bytes] = []
    at, previous = _HEAD.size, b""
    for _ in range(count):
        start = at
        at += _FIXED + name_bytes
        at += 4 if raw[at] & 0x40 else 2  # the "extended" flag brings two more bytes
        if version == 4:
            strip, at = _offset(raw, at)
            previous = previous[: len(previous) - strip]
        else:
            previous = b""
        end = raw.index(b"\0", at)
        previous += raw[at:end]
        paths.append(previous)
        at = end + 1 if version == 4 else start + (end - start + 8) // 8 * 8
    return paths


def _offset(raw: bytes, at: int) -> tuple[int, int]:
    """Read a variable-width number as in pack files (each further byte adds one); return it and the
    position behind it."""
    value = raw[at] & 0x7F
    while raw[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (raw[at] & 0x7F)
    return value, at + 1


def _name_bytes(git_dir: str) -> int:
    try:
        with open(f"{common_dir(git_dir)}/config", encoding="utf-8", errors="replace") as file:
            return 32 if "objectformat = sha256" in file.read().lower() else 20
    except OSError:
        return 20
