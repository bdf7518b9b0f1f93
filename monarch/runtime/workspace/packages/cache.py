"""The folder in which wheels and environments are kept; the least recently used are removed."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from monarch import ours

UNFINISHED = "unfinished-"
"""What the names of folders begin with that are being made, or taken away."""

_UNFINISHED_SECONDS = 86_400.0


def cache_folder() -> Path:
    """Return the cache folder of this user on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "monarch"


def used(folder: Path) -> None:
    """Note that a folder of a cache is in use now."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def trim(cache: Path, max_bytes: int, keep: Collection[str] = ()) -> None:
    """Delete folders of a cache, least recently used first, until it has at most ``max_bytes``.

    Folders named in ``keep`` are not deleted, but their size counts. Old unfinished folders, whose
    process has probably ended, are deleted too.
    """
    free = max_bytes
    for folder in sorted(_folders(cache), key=_last_use, reverse=True):
        if folder.name.startswith(UNFINISHED):
            if time.time() - _last_use(folder) > _UNFINISHED_SECONDS:
                _remove(folder)
            continue
        size = _size(folder)
        if folder.name in keep or size <= free:
            free -= size
            continue
        with contextlib.suppress(OSError):
            # Out of sight at once, so that no process finds half of it.
            grave = tempfile.mkdtemp(prefix=UNFINISHED, dir=cache)
            folder.rename(grave)
            _remove(Path(grave))


def _remove(folder: Path) -> None:
    with contextlib.suppress(ours.NotOurs):
        ours.remove_folder(folder, folder.parent, name=f"{UNFINISHED}.*")


def _folders(cache: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(cache) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _last_use(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
