"""The state folder, in which a replica keeps its own files: beside the replica's folder, which so
contains only the workspace.

For `project` it is `.project.monarch`, on the same file system, so that files can be renamed into
place. If that is impossible (the folder is a mount point, or we may not write to the folder above),
it is `.monarch` in the folder itself. The first replica decides which of the two.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import uuid
from pathlib import Path

from monarch_sync.errors import ReplicaBusy
from monarch_sync.tree.entry import RESERVED

_MODE = 0o700  # Its files may have been in a folder that is closed to other users.


def find_state_folder(root: str | os.PathLike[str]) -> Path | None:
    """Return the state folder of a replica; None if ``root`` is not the folder of a replica."""
    inside, beside = _candidates(root)
    if inside.is_dir() and not inside.is_symlink():
        return inside
    return beside if _is_ours(beside) else None


def make_state_folder(root: str | os.PathLike[str]) -> Path:
    """Return the state folder of a replica. Makes it, and the replica's folder, if missing.

    If the replica's folder is gone, its old state folder is deleted first.
    """
    inside, beside = _candidates(root)
    if not inside.parent.exists() and _is_ours(beside):
        _check_parts(beside)
        remove_part(beside, beside.parent)
    os.makedirs(root, exist_ok=True)
    state = find_state_folder(root)
    if state is not None:
        _check_parts(state)
        _keep_private(state)
        return state
    fresh = beside.with_name(f".{uuid.uuid4().hex}{RESERVED}")
    try:
        fresh.mkdir(mode=_MODE)
        through = inside.with_name(fresh.name)
        # Two mounts of one file system look alike, and yet nothing can be renamed between them.
        fresh.rename(through)
        through.rename(fresh)
        fresh.rename(beside)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.rmdir()
    if _is_ours(beside):
        return beside
    inside.mkdir(mode=_MODE, exist_ok=True)
    return inside


def remove_part(folder: str | os.PathLike[str], below: str | os.PathLike[str]) -> None:
    """Remove a folder that a replica has made, with all that is in it. What the system does not let
    us remove stays.

    Raises ``PermissionError`` if the folder is a link, or if its parent is not the folder
    ``below``.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or os.path.dirname(folder) != os.fspath(below):
        raise PermissionError(errno.EPERM, "it is no folder of a replica's own", str(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _check_parts(folder: Path) -> None:
    """Raise ``PermissionError`` if there is a link in the state folder. A replica makes no links;
    if somebody else did, the replica would change files outside of the folder.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise PermissionError(
                    errno.EPERM,
                    "a replica keeps no links among its own files: somebody else has made this "
                    "folder. Remove it",
                    entry.path,
                )


def _keep_private(folder: Path) -> None:
    """Close the state folder to other users; an earlier version made it open to all."""
    if stat.S_IMODE(folder.stat().st_mode) != _MODE:
        with contextlib.suppress(PermissionError):  # It may be another user's, and open to us.
            folder.chmod(_MODE)


def _candidates(root: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths that a state folder may have: inside the replica's folder, and beside it."""
    real = Path(os.path.realpath(root))
    return real / RESERVED, real.parent / f".{real.name}{RESERVED}"


def _is_ours(folder: Path) -> bool:
    """Return whether this is a folder, not a link, that belongs to the user of this process."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False  # Not there, or it cannot be: its name would be too long.
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


class FolderLock:
    """A lock on a state folder. It is taken when this object is made, and kept until `release` is
    called or the process ends.

    Raises ``ReplicaBusy`` if another process has it.
    """

    def __init__(self, state: Path) -> None:
        self._file = open(state / "lock", "w")  # noqa: SIM115  held as long as we live
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ReplicaBusy(str(state)) from None
        except OSError:
            pass  # Without locks (Lustre, as it is often mounted) this proves nothing.

    @property
    def is_held(self) -> bool:
        return not self._file.closed

    def release(self) -> None:
        self._file.close()
