"""Surroundings: what is pushed with a workspace, though it is outside of its folders.

Editable installs of the author's environment, and the wheels that were brought for it with `--env`.
The notes on a workspace are kept in the user's cache folder, by the workspace's folders, so that a
later `monarch sync`, which is another process, uses the same wheels and knows which lock file the
hosts have packages for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from monarch.runtime.workspace.packages.cache import cache_folder, trim
from monarch.runtime.workspace.packages.environment import EnvironmentFailed, HostPython, build
from monarch.runtime.workspace.packages.lock_files import Needs, needs_of
from monarch.runtime.workspace.packages.wheels import FOLDER
from monarch.whole_file import write_whole
from monarch_sync.content.digest import digest_bytes
from monarch_sync.editable import editable_folders
from monarch_sync.progress import progress
from monarch_sync.workspace import Folder, Workspace

_MAX_WHEEL_BYTES = 2 * 2**30


class _Noted(msgspec.Struct):
    """What the cache folder remembers of one workspace between runs of the program."""

    #: The digest of what its code needed at the last install or, without one, at the last push.
    needs: str = ""
    #: The folder with the wheels of the last install; "" without one.
    environment: str = ""
    #: The workspace's own folders.
    folders: tuple[str, ...] = ()


class Surroundings:
    """What is pushed along with a workspace: folders that are installed in editable mode, and
    wheels.

    Wheels that no workspace uses are trimmed to ``max_wheel_bytes``.
    """

    def __init__(self, workspace: Workspace, max_wheel_bytes: int = _MAX_WHEEL_BYTES) -> None:
        self._max_wheel_bytes = max_wheel_bytes
        self._workspace = workspace
        self._editable = editable_folders(workspace)
        name = digest_bytes(repr(workspace.folders).encode("utf-8", "surrogateescape")).hex()
        self._file = cache_folder() / "workspaces" / f"{name}.json"
        self._noted = _read(self._file)

    def whole(self) -> Workspace:
        """Return the workspace with its editable folders and its folder of wheels added."""
        more = list(self._editable)
        if self._noted.environment and os.path.isdir(self._noted.environment):
            more.append(Folder(Path(self._noted.environment), FOLDER, follows_git=False))
        return self._workspace.with_folders(more) if more else self._workspace

    def arrivals(self) -> list[str]:
        """Return the lines to print at a first push: which folders are pushed unasked."""
        return [
            f"{folder.local} comes along as {folder.remote}: it is installed in editable mode here"
            for folder in self._editable
        ]

    def install(self, hosts: Sequence[HostPython], pip_arguments: Sequence[str] = ()) -> str:
        """Get the wheels that the lock file lists and ``hosts`` lack; return a text about the
        result.

        The text is never empty: it also says that nothing was needed, or that there is no lock
        file. Raises ``EnvironmentFailed`` if the wheels cannot be had; then nothing has changed.
        """
        needs = needs_of(self._workspace)
        if not needs:
            return "there is no lock file, so there is no environment to install"
        self._refuse_absent(needs)
        follower = progress()
        follower.step, previous_step = "packages", follower.step
        wheels = build(needs, hosts, cache_folder(), pip_arguments)
        follower.step = previous_step
        self._note(needs.digest, str(wheels or ""))
        _trim(self._max_wheel_bytes)
        where = ", ".join(needs.files)
        if wheels is None:
            return f"every host has what {where} asks for"
        return f"packages of {where} come along as wheels, and hosts install them"

    def _refuse_absent(self, needs: Needs) -> None:
        """Raise if source code that the lock file names would not be pushed to any host."""
        pushed = [folder.local for folder in (*self._workspace.folders, *self._editable)]
        for name, source in needs.sources.items():
            if not any(
                path == source or path in source.parents or source in path.parents
                for path in pushed
            ):
                raise EnvironmentFailed(
                    f"{', '.join(needs.files)} has {name} as the folder {source}, which does not "
                    "come along: add it to the workspace's dirs, or install it in editable mode "
                    "(`uv sync`)"
                )

    def changes(self) -> list[str]:
        """Return texts about lock files that ask for other packages than the hosts have; empty if
        the hosts have what they ask for, or never got packages.

        A text also says if the packages that were pushed are gone from this machine.
        """
        needs = needs_of(self._workspace)
        environment = self._noted.environment
        if environment and not os.path.isdir(environment):
            return [
                f"the packages that came along are gone from {environment}, so hosts have them no "
                "longer; `monarch sync --env` brings them again"
            ]
        if needs.digest == self._noted.needs:
            return []
        is_first = not self._noted.needs
        if not self._noted.environment:
            self._note(needs.digest)
        if is_first or not needs:
            return []
        return [
            f"{', '.join(needs.files)} changed: hosts still have the packages of before; "
            "`monarch sync --env` installs what it asks for now"
        ]

    def _note(self, needs: str, environment: str = "") -> None:
        folders = tuple(os.fspath(folder.local) for folder in self._workspace.folders)
        self._noted = _Noted(needs, environment, folders)
        # Without a cache folder, it is known as long as this process lives.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, msgspec.json.encode(self._noted))


def _read(file: Path) -> _Noted:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Noted)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Noted()


def _trim(max_wheel_bytes: int) -> None:
    """Forget workspaces whose folders are gone; delete wheels of the cache beyond
    ``max_wheel_bytes``.

    Wheels that a workspace still uses are kept.
    """
    in_use = set()
    for file in (cache_folder() / "workspaces").glob("*.json"):
        noted = _read(file)
        if noted.folders and not any(map(os.path.isdir, noted.folders)):
            file.unlink(missing_ok=True)
        elif noted.environment:
            in_use.add(Path(noted.environment).name)
    trim(cache_folder() / "wheels", max_wheel_bytes, in_use)
