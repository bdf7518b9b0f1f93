"""Workspace: local folders, and where each lands on a host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_sync.errors import WorkspaceMissing
from monarch_sync.tree.entry import is_reserved

Local = str | os.PathLike[str]

_IMAGE = "${img_root}"  # torchx puts the place of an image there


@dataclass(frozen=True)
class Folder:
    """One local folder, and where it lands: ``remote`` is a path relative to the replica's root, ""
    for the root itself.

    ``follows_git``: whether git's ignore rules apply to the folder. It is False for a folder whose
    files an installer has written.
    """

    local: Path
    remote: str
    follows_git: bool = True

    def check(self) -> None:
        """Raise `WorkspaceMissing` unless the local folder exists and can be listed. A missing
        folder would look empty, and its push would delete the files on the hosts."""
        try:
            os.scandir(self.local).close()
        except FileNotFoundError:
            raise WorkspaceMissing(str(self.local), "does not exist") from None
        except NotADirectoryError:
            raise WorkspaceMissing(str(self.local), "is not a directory") from None
        except OSError as error:
            raise WorkspaceMissing(str(self.local), f"cannot be listed: {error.strerror}") from None

    @property
    def is_there(self) -> bool:
        """Whether `check` passes."""
        try:
            self.check()
        except WorkspaceMissing:
            return False
        return True

    def remote_of(self, relative: str) -> str:
        """Return the path in the manifest of a path that is relative to this folder."""
        if not self.remote:
            return relative
        return f"{self.remote}/{relative}" if relative else self.remote

    def relative_of(self, remote: str) -> str | None:
        """Return the path, relative to this folder, whose entry lands at the manifest path
        ``remote``. None if no path of this folder lands there.
        """
        if not self.remote or remote == self.remote:
            return remote[len(self.remote) :]
        prefix = self.remote + "/"
        return remote[len(prefix) :] if remote.startswith(prefix) else None

    def inside(self, local: str) -> str:
        """Return a local path inside this folder, relative to it; "" if it is not inside."""
        above = f"{self.local}/"
        return local[len(above) :] if local.startswith(above) else ""

    def overlaps(self, local: str) -> bool:
        """Return whether a local path and this folder overlap: one is inside the other, or they are
        equal.
        """
        mine = str(self.local)
        return f"{mine}/".startswith(f"{local}/") or local.startswith(f"{mine}/")


class Workspace:
    """Local folders that hosts mirror.

    If `dirs` is a list, each folder lands in a folder with its own name. If it is a mapping (local
    -> remote), each lands at its remote path; "" is the replica's root itself. `ignore` adds
    patterns in `.gitignore` syntax, without `!`. `editable` includes the author's editable installs
    (see `monarch_sync.editable`). `env` is kept for programs that read it; no push uses it.

    Raises `ValueError` for an empty local path, a remote path that is absolute or has `..`, two
    listed folders of one name, and for one folder or pattern in place of a list. A missing folder
    is found when it is scanned.
    """

    def __init__(
        self,
        dirs: Sequence[Local] | Mapping[Local, str] | None = None,
        env: object = None,
        *,
        ignore: Sequence[str] = (),
        editable: bool = True,
    ) -> None:
        self.env = env
        self.editable = editable
        pairs = dict(dirs) if isinstance(dirs, Mapping) else _by_name(dirs or ())
        self.folders: tuple[Folder, ...] = tuple(
            Folder(_local(local), _remote(remote)) for local, remote in pairs.items()
        )
        if isinstance(ignore, str):
            raise ValueError(f"ignore={ignore!r}: give a list of patterns")
        self.ignore: tuple[str, ...] = tuple(ignore)
        for pattern in self.ignore:
            if pattern.startswith("!"):
                raise ValueError(f"ignore={pattern!r}: a `!` belongs in .monarchignore")

    @classmethod
    def null(cls) -> Workspace:
        """Return a workspace without folders. It is only a value: nothing can be pushed from it."""
        return cls()

    def check(self) -> None:
        """Raise `ValueError` if it has no folders: a push of it would delete all files on the
        hosts."""
        if not self.folders:
            raise ValueError(
                "this workspace has no folders, so a push of it would delete all that was pushed "
                "to the hosts before: give Workspace(dirs=[...]) at least one"
            )

    def with_folders(self, more: Iterable[Folder]) -> Workspace:
        """Return this workspace with further folders after its own."""
        new = Workspace(env=self.env, ignore=self.ignore, editable=self.editable)
        new.folders = (*self.folders, *more)
        return new

    def ignoring(self, patterns: Iterable[str]) -> Workspace:
        """Return this workspace with further patterns of paths to leave out."""
        new = Workspace(env=self.env, ignore=(*self.ignore, *patterns), editable=self.editable)
        new.folders = self.folders
        return new

    def folders_meet(self, touched: Iterable[str]) -> bool:
        """Return whether one folder of the workspace has an entry at a path where another folder
        lands. True also if such an entry is among the ``touched`` paths, because it may just have
        been deleted.
        """
        for outer in self.folders:
            for inner in self.folders:
                inside = outer.relative_of(inner.remote)
                if outer is inner or inside is None:
                    continue
                landing = f"{outer.local}/{inside.partition('/')[0]}".rstrip("/")
                if os.path.lexists(landing) or any(path.startswith(landing) for path in touched):
                    return True
        return False

    @property
    def dirs(self) -> dict[Path, str]:
        """The local folders, and where each lands; "" is the replica's root."""
        return {folder.local: folder.remote for folder in self.folders}

    def merge(self, outdir: Local) -> None:
        """Copy each folder, as a whole, to where it lands below ``outdir``. Of files that land at
        one path, the last folder's is kept.

        Raises ``WorkspaceMissing``, before anything is copied, for a folder that does not exist.
        """
        for folder in self.folders:
            folder.check()
        Path(outdir).mkdir(parents=True, exist_ok=True)
        for folder in self.folders:
            shutil.copytree(folder.local, Path(outdir) / folder.remote, dirs_exist_ok=True)

    def set_env_vars(self, appdef: Any) -> None:
        """Set environment variables of the roles of a torchx `AppDef`, so that they find what
        `merge` put into their image.

        The folders are added to each role's `PYTHONPATH`. `WORKSPACE_DIR` is set if a role does not
        have it yet, and so is `CONDA_DIR` if the workspace has an `env`.
        """
        for role in appdef.roles:
            root = role.env.setdefault("WORKSPACE_DIR", f"{_IMAGE}/workspace")
            old_paths = [path for path in role.env.get("PYTHONPATH", "").split(":") if path]
            new_paths = [f"{root}/{folder.remote}" for folder in self.folders]
            role.env["PYTHONPATH"] = ":".join(dict.fromkeys([*old_paths, *new_paths]))
            if self.env is not None:
                role.env.setdefault("CONDA_DIR", f"{_IMAGE}/conda")

    def locate(self, remote: str) -> Iterator[Path]:
        """Yield the local paths that a manifest path may come from, in the order of the workspace's
        folders."""
        for folder in self.folders:
            relative = folder.relative_of(remote)
            if relative is not None:
                yield folder.local / relative

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workspace):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.folders, self.ignore, self.editable

    def __repr__(self) -> str:
        dirs = {str(local): remote for local, remote in self.dirs.items()}
        return f"Workspace(dirs={dirs!r}, ignore={self.ignore!r})"


def _by_name(dirs: Sequence[Local]) -> dict[Local, str]:
    if isinstance(dirs, str | os.PathLike):
        raise ValueError(f"dirs={dirs!r}: give a list of folders, or a mapping local -> remote")
    named: dict[Local, str] = {}
    for local in dirs:
        name = os.path.basename(os.path.abspath(os.path.expanduser(local)))
        if name in named.values():
            raise ValueError(f"two folders are called {name!r}: use dirs={{local: remote}}")
        named[local] = name
    return named


def _local(local: Local) -> Path:
    if not os.fspath(local):
        raise ValueError('an empty local path: say "." for the current directory')
    return Path(local).expanduser().resolve()


def _remote(remote: str) -> str:
    parts = [part for part in remote.split("/") if part not in ("", ".")]
    if remote.startswith("/") or ".." in parts or "\0" in remote:
        raise ValueError(f"remote path {remote!r} must be relative to the replica, without `..`")
    if reserved := next(filter(is_reserved, parts), None):
        raise ValueError(f"remote path {remote!r} lies in {reserved}/, which is the replica's own")
    return "/".join(parts)
