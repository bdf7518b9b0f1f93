"""A run's folder belongs to one program at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from monarch.errors import JobError

__all__ = ["Claim"]


class Claim:
    """Holds a folder until it is closed, or the program ends, however it ends.

    Two programs in one folder would save over each other's checkpoints. Raises ``JobError`` where
    another one holds it. Where the file system has no locks, nobody can tell, and it is held.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise JobError(
                f"{folder} is being run by another program; --new begins another run"
            ) from None
        except OSError:
            pass

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)
