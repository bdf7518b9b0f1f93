"""The few changes that a replica makes to a disk, each one step.

One seam, so that a test can stop the world between any two of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

__all__ = ["Disk"]


class Disk:
    """Each method is one step; together they are all the ways in which a replica writes."""

    def write(self, path: Path, content: bytes | bytearray | memoryview, mode: int = 0o600) -> None:
        """A new file, whole or not at all: written beside, and renamed into place."""
        beside = path.with_name(f"{path.name}.part")
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(beside, path)

    def copy(self, source: Path, target: Path, mode: int) -> None:
        shutil.copyfile(source, target, follow_symlinks=False)
        os.chmod(target, mode)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; nothing happens where the name is taken."""
        with contextlib.suppress(FileExistsError):
            os.link(source, target, follow_symlinks=False)

    def set_time(self, path: Path, seconds: int) -> None:
        os.utime(path, (seconds, seconds))

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        os.mkdir(path, 0o755)

    def remove_folder(self, path: Path) -> None:
        os.rmdir(path)

    def make_link(self, path: Path, target: str) -> None:
        os.symlink(target, path)

    def chmod(self, path: Path, mode: int) -> None:
        os.chmod(path, mode)
