"""Who keeps a replica's folder: one process at a time, as far as the file system can tell."""

from __future__ import annotations

import fcntl
from pathlib import Path

from monarch_sync.errors import ReplicaBusy

__all__ = ["FolderLock"]


class FolderLock:
    """Held from here until `release`, or until the process ends. Raises ``ReplicaBusy``."""

    def __init__(self, state: Path) -> None:
        self._file = open(state / "lock", "w")  # noqa: SIM115  held as long as we live
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ReplicaBusy(str(state)) from None
        except OSError:
            pass  # The file system has no locks (Lustre, as it is often mounted): nobody can tell.

    @property
    def is_held(self) -> bool:
        return not self._file.closed

    def release(self) -> None:
        self._file.close()
