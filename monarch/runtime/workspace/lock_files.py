"""Lock files: what a workspace says its code needs, and whether that is what it said before."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from monarch_sync.digest import digest_bytes
from monarch_sync.workspace import Workspace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Needs", "needs_of"]

_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(txt|in)")


class Needs(NamedTuple):
    """What to give to pip. ``files``: where it stands; ``digest``: the name of this state.

    ``constraints``: the exact versions that a `uv.lock` settles on.
    """

    files: tuple[str, ...]
    arguments: tuple[str, ...]
    constraints: tuple[str, ...]
    digest: str

    def __bool__(self) -> bool:
        return bool(self.files)


def needs_of(workspace: Workspace) -> Needs:
    """The needs of a workspace: of each folder, its `uv.lock` with the `pyproject.toml` beside it,
    else its `requirements*.txt`, else what its `pyproject.toml` depends on."""
    files: list[str] = []
    arguments: list[str] = []
    constraints: list[str] = []
    seen = b""
    for folder in workspace.folders:
        for file, given, exact in _folder_needs(folder.local):
            files.append(folder.remote_of(file.name))
            arguments += given
            constraints += exact
            seen += repr((file.name, given, exact)).encode("utf-8", "surrogateescape")
            if file.name.startswith("requirements"):
                seen += file.read_bytes()
    digest = digest_bytes(seen).hex() if files else ""
    return Needs(tuple(files), tuple(arguments), tuple(constraints), digest)


def _folder_needs(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    project = _toml(folder / "pyproject.toml").get("project", {})
    wanted = [str(need) for need in project.get("dependencies", ())]
    lock = folder / "uv.lock"
    if lock.is_file():
        yield lock, wanted, list(_locked(_toml(lock)))
        return
    found = sorted(p for p in folder.glob("requirements*") if _REQUIREMENTS.fullmatch(p.name))
    if found:
        plain = [p for p in found if p.name == "requirements.txt"]
        for path in plain or [p for p in found if p.suffix == ".txt"] or found:
            yield path, ["-r", str(path)], []
    elif wanted:
        yield folder / "pyproject.toml", wanted, []


def _locked(lock: dict[str, Any]) -> Iterator[str]:
    """The versions in a `uv.lock`, but for packages of which it has several."""
    versions: dict[str, set[str]] = {}
    for package in lock.get("package", ()):
        if "registry" in package.get("source", {}) and "version" in package:
            versions.setdefault(package["name"], set()).add(package["version"])
    for name, found in sorted(versions.items()):
        if len(found) == 1:
            yield f"{name}=={found.pop()}"


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
