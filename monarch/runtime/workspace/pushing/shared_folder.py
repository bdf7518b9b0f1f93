"""A replica's folder that several hosts see: one of them writes it, and each checks it for itself.

A host agent that only reads its folder knows two facts about it: that it is the same folder as
another host's (by an id in the replica's state folder), and that it has reached a state, once all
changed files were checked from here.
"""

from __future__ import annotations

import os
import stat
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from monarch_sync.content.stamps import digest_of, lstat
from monarch_sync.replicas.state_folder import find_state_folder
from monarch_sync.tree.entry import from_wire, path_fault

_LOOK_AGAIN_SECONDS = 0.1


class SharedFolder:
    """A folder that another host writes.

    ``generation`` and ``digest`` are the last verified state. If a file is not as expected, it is
    checked again for ``patience_seconds``.
    """

    def __init__(self, root: str, state: str, patience_seconds: float = 10.0) -> None:
        self._patience_seconds = patience_seconds
        self._root = root
        self.id = _make_id(Path(state))
        self.generation = 0
        self.digest = ""

    def verify(self, generation: int, digest: str, files: Iterable[tuple[bytes, bytes]]) -> str:
        """Check that ``files`` have arrived; return "" and record the generation, or a text about
        the first file that differs.

        Each file is given as (path, digest), with None for a deleted file. A network file system
        may show an old file for some seconds, so each is checked again until the patience ends.
        """
        deadline = time.monotonic() + self._patience_seconds
        for raw_path, expected in files:
            path = from_wire(raw_path)
            if fault := path_fault(path):
                return f"{path!r} {fault}"
            while _digest(os.path.join(self._root, path)) != expected:
                if time.monotonic() > deadline:
                    return f"{path} is not what the host that writes the shared folder wrote"
                time.sleep(_LOOK_AGAIN_SECONDS)
        self.generation, self.digest = generation, digest
        return ""


def _digest(path: str) -> bytes:
    try:
        status = lstat(path)
    except OSError:
        return b""
    is_file = status is not None and stat.S_ISREG(status.st_mode)
    return (digest_of(path) if is_file else None) or b""


def folder_id(root: str | os.PathLike[str]) -> str:
    """Return the id of a replica's folder; "" if ``root`` is not one.

    The id is the same on all hosts that mount the folder.
    """
    state = find_state_folder(root)
    return _read_id(state) if state is not None else ""


def _read_id(state: Path) -> str:
    try:
        return (state / "id").read_text()
    except OSError:
        return ""


def _make_id(folder: Path) -> str:
    ours = folder / f"id.{uuid.uuid4().hex}"
    ours.write_text(ours.name)
    try:
        os.link(ours, folder / "id")  # Whole, and only once, however many begin together.
    except FileExistsError:
        pass
    finally:
        ours.unlink()
    return _read_id(folder)
