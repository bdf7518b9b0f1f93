"""Host environment: the packages that were pushed with a workspace, unpacked on its host.

The wheels are files of the workspace, so they have come through the content store, verified, and
are reverted by a rollback. They are unpacked into a folder that procs import from. It is prepared
before any host commits, so a host that cannot make it refuses the push for all, and it is put in
place with the commit, while no actor runs. Its contents follow from the files of the workspace
alone: an agent that starts, or goes back, makes it again.

A set of wheels is unpacked once for all agents that share a cache folder; each has hard links, so
the cache may be trimmed at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from monarch import ours
from monarch.errors import MonarchError
from monarch.runtime.workspace.packages.cache import UNFINISHED, cache_folder, trim, used
from monarch.runtime.workspace.packages.python_here import python_tag
from monarch.runtime.workspace.packages.wheels import (
    FOLDER,
    LIST,
    BadWheel,
    Wheel,
    read_list,
    unpack,
)
from monarch_sync.content.digest import digest_bytes
from monarch_sync.content.stamps import digest_of
from monarch_sync.tree.entry import from_wire

_PLACE = "environment"  # in the replica's state folder
_INDEX = ".monarch-index"
_MAX_CACHE_BYTES = 4 * 2**30


def import_place(root: str, state: str, folder: str) -> str:
    """Return the folder from which procs import, for a ``folder`` of the workspace on this host.
    ``root`` is the replica's folder, ``state`` its state folder.

    It is the folder itself, below ``root``. For the folder of wheels, it is the place in ``state``
    into which they are unpacked.
    """
    if folder == FOLDER:
        return os.path.join(state, _PLACE)
    return os.path.join(root, folder) if folder else root


class UnfitEnvironment(MonarchError):
    """This host cannot use the packages; the text says why."""


class _Index(msgspec.Struct):
    """The list of an unpacked environment: a ``digest`` of its sources, the ``tag`` of its Python,
    and its files with their checksums.
    """

    digest: str
    tag: str
    files: dict[str, int]


class HostEnvironment:
    """The environment of one replica. Only its agent's thread may call it. The cache of unpacked
    packages is trimmed to ``max_cache_bytes``."""

    def __init__(self, root: str, state: str, max_cache_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_cache_bytes = max_cache_bytes
        self._root = root
        self._folder = os.path.join(state, _PLACE)
        self._next = f"{self._folder}.next"
        self._old = f"{self._folder}.old"
        self._index = _read_index(self._folder)

    def stage(self, files: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """Prepare the environment of a staged state; ``files`` are the files that the state
        changes, as in ``Staged``.

        Returns each file of the environment that will change, as (its path below the state folder,
        the path of its new content). The second path is "" for a file that will be deleted. Raises
        ``UnfitEnvironment`` if this host cannot use the packages.
        """
        below = f"{FOLDER}/"
        landings = {from_wire(path): from_wire(landing) for path, landing in files}
        landings = {path: landing for path, landing in landings.items() if path.startswith(below)}
        if not landings:
            return []

        def find(file: str) -> str:
            return os.path.join(self._root, landings.get(below + file, below + file))

        is_wanted = landings.get(below + LIST, LIST) != ""
        return self._prepare(find if is_wanted else None)

    def follow(self) -> None:
        """Show the environment that the present files of the workspace need.

        Raises ``UnfitEnvironment`` if this host cannot use the packages.
        """

        def find(file: str) -> str:
            return os.path.join(self._root, FOLDER, file)

        is_wanted = os.path.lexists(find(LIST))
        if not is_wanted and not os.path.lexists(self._folder):
            return
        with _disk_errors_explained(self._folder):
            self._prepare(find if is_wanted else None)
            if is_wanted and not os.path.lexists(self._next):
                return
            self.settle()
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._folder, self._old)
            if is_wanted:
                os.rename(self._next, self._folder)
        self._index = _read_index(self._folder)

    def drop(self) -> None:
        """Forget the prepared environment."""
        self._remove(self._next)

    def settle(self) -> None:
        """Delete what was replaced, which may take a while."""
        self._remove(self._old)

    def _remove(self, folder: str) -> None:
        with contextlib.suppress(ours.NotOurs):  # A link that somebody has put there stays.
            ours.remove_folder(folder, os.path.dirname(self._folder), name=rf"{_PLACE}\.\w+")

    def why_unfit(self) -> str:
        """Return why this Python cannot use the packages in the folder, which another host may have
        put there; "" if it can, or if there are none.
        """
        index = _read_index(self._folder)
        if index is None or index.tag == python_tag():
            return ""
        return (
            f"the shared folder has packages for {index.tag}, and this host runs {python_tag()}: "
            "give it a folder of its own"
        )

    def _prepare(self, find: Callable[[str], str] | None) -> list[tuple[str, str]]:
        """Prepare the next environment, unless it is already in use; return the changes as `stage`
        does.

        ``find`` returns the path of a staged file by its name; if it is None, the next state has no
        environment.
        """
        current = self._index
        old_files = current.files if current is not None else {}
        if find is None:
            return [(f"{_PLACE}/{path}", "") for path in old_files]
        wheels = _wanted(read_list(find(LIST)))
        digest = digest_bytes(repr((python_tag(), wheels)).encode()).hex()
        if current is not None and current.digest == digest:
            self.drop()
            return []
        new = _read_index(self._next)
        if new is None or new.digest != digest:
            with _disk_errors_explained(self._next):
                self.drop()
                _put(digest, wheels, find, self._next, self._max_cache_bytes)
                new = _read_index(self._next)
        new_files = new.files if new is not None else {}
        changed = {path for path, _ in old_files.items() ^ new_files.items()}
        return [
            (f"{_PLACE}/{path}", os.path.join(self._next, path) if path in new_files else "")
            for path in sorted(changed)
        ]


def _wanted(by_tag: dict[str, list[Wheel]]) -> list[Wheel]:
    wheels = by_tag.get(python_tag())
    if wheels is None:
        came = " and ".join(sorted(by_tag)) or "no Python"
        raise UnfitEnvironment(
            f"it runs {python_tag()}, and packages have come along for {came}: "
            "`monarch sync --env` brings them for all"
        )
    return wheels


def _put(
    digest: str, wheels: list[Wheel], find: Callable[[str], str], target: str, max_cache_bytes: int
) -> None:
    """Make the folder ``target``, and unpack all ``wheels`` into it. Nothing is done if another
    agent that uses the same cache has made the folder.
    """
    cache = cache_folder() / "unpacked"
    cache.mkdir(parents=True, exist_ok=True)
    while True:
        with _locked(cache, fcntl.LOCK_SH):
            if (cache / digest).is_dir():
                used(cache / digest)
                _copy(cache / digest, Path(target))
                return
        with _locked(cache, fcntl.LOCK_EX):
            if not (cache / digest).is_dir():
                _make(digest, wheels, find, cache)
                trim(cache, max_cache_bytes, {digest})


def _copy(source: Path, target: Path) -> None:
    but_index = shutil.ignore_patterns(_INDEX)
    shutil.copytree(source, target, copy_function=_link, symlinks=True, ignore=but_index)
    # Last, because it marks the folder as complete.
    _link(str(source / _INDEX), str(target / _INDEX))


def _make(digest: str, wheels: list[Wheel], find: Callable[[str], str], cache: Path) -> None:
    fresh = tempfile.mkdtemp(prefix=UNFINISHED, dir=cache)
    try:
        index = _Index(digest, python_tag(), {})
        for wheel in wheels:
            index.files.update(_unpack(wheel, find(wheel.file), fresh))
        Path(fresh, _INDEX).write_bytes(msgspec.json.encode(index))
        os.chmod(fresh, 0o755)
        os.rename(fresh, cache / digest)
    finally:
        ours.remove_folder(fresh, cache, name=f"{UNFINISHED}.*")


@contextlib.contextmanager
def _locked(cache: Path, how: int) -> Iterator[None]:
    """Lock the cache: shared to read from it, exclusive to change it."""
    with open(cache / ".lock", "w") as lock:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, how)
        yield


def _unpack(wheel: Wheel, path: str, target: str) -> dict[str, int]:
    digest = digest_of(path)
    if digest is None:
        raise UnfitEnvironment(f"{wheel.file} has not come along: do ignore rules leave it out?")
    if digest.hex() != wheel.digest:
        raise UnfitEnvironment(f"{wheel.file} is not the wheel that was sent")
    try:
        return unpack(path, target)
    except BadWheel as error:
        raise UnfitEnvironment(f"{wheel.file}: {error}") from None


@contextlib.contextmanager
def _disk_errors_explained(folder: str) -> Iterator[None]:
    """Turn disk errors in this block into an ``UnfitEnvironment`` with a text."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        where = getattr(error, "filename", None) or folder
        reason = getattr(error, "strerror", None) or error
        raise UnfitEnvironment(f"its packages could not be unpacked: {where}: {reason}") from None


def _read_index(folder: str) -> _Index | None:
    try:
        return msgspec.json.decode(Path(folder, _INDEX).read_bytes(), type=_Index)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # The cache lies on another file system.
