"""Lock files: the packages that a workspace's code needs, and whether they have changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from monarch_sync.content.digest import digest_bytes
from monarch_sync.workspace import Workspace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(txt|in)")


class Needs(NamedTuple):
    """The packages that a workspace needs, as ``arguments`` for pip.

    ``files`` are the files that list the packages; ``digest`` changes if the packages in these
    files change. ``constraints`` are the packages of a `uv.lock`, each with its exact version or
    its path. ``sources`` are the folders of source code among these packages, by name.
    """

    files: tuple[str, ...]
    arguments: tuple[str, ...]
    constraints: tuple[str, ...]
    digest: str
    sources: Mapping[str, Path] = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.files)


class _Locked(NamedTuple):
    """A package that a `uv.lock` pins. ``requirement`` is the argument for pip. ``source``: the
    local folder of its source code; None if the package comes from elsewhere.
    """

    name: str
    requirement: str
    source: Path | None = None


def needs_of(workspace: Workspace) -> Needs:
    """Return the packages that a workspace needs; empty if no file lists any.

    For each folder of the workspace, they are read from its `uv.lock` and the `pyproject.toml`
    beside it. In a folder without a lock file, they are read from its `requirements*.txt`, or from
    its `pyproject.toml` if there is none.
    """
    files: list[str] = []
    arguments: list[str] = []
    constraints: list[str] = []
    sources: dict[str, Path] = {}
    seen = b""
    for folder in workspace.folders:
        for file, requirements, locked in _folder_needs(folder.local):
            exact = [pin.requirement for pin in locked]
            sources.update({pin.name: pin.source for pin in locked if pin.source is not None})
            files.append(folder.remote_of(file.name))
            arguments += requirements
            constraints += exact
            seen += repr((file.name, requirements, exact)).encode("utf-8", "surrogateescape")
            if file.name.startswith("requirements"):
                seen += file.read_bytes()
    digest = digest_bytes(seen).hex() if files else ""
    return Needs(tuple(files), tuple(arguments), tuple(constraints), digest, sources)


def _folder_needs(folder: Path) -> Iterator[tuple[Path, list[str], list[_Locked]]]:
    project = _toml(folder / "pyproject.toml").get("project", {})
    wanted = [str(need) for need in project.get("dependencies", ())]
    lock = folder / "uv.lock"
    if lock.is_file():
        yield lock, wanted, list(_locked(_toml(lock), folder))
        return
    lists = sorted(p for p in folder.glob("requirements*") if _REQUIREMENTS.fullmatch(p.name))
    if lists:
        plain = [p for p in lists if p.name == "requirements.txt"]
        for path in plain or [p for p in lists if p.suffix == ".txt"] or lists:
            yield path, ["-r", str(path)], []
    elif wanted:
        yield folder / "pyproject.toml", wanted, []


def _locked(lock: dict[str, Any], folder: Path) -> Iterator[_Locked]:
    """Yield the packages that a `uv.lock` pins. A package for which it has several versions is left
    out.
    """
    by_name: dict[str, set[_Locked]] = {}
    for package in lock.get("package", ()):
        pinned = _settled(package, folder)
        if pinned is not None:
            by_name.setdefault(pinned.name, set()).add(pinned)
    for _, versions in sorted(by_name.items()):
        if len(versions) == 1:
            yield versions.pop()


def _settled(package: dict[str, Any], folder: Path) -> _Locked | None:
    """Return one package of a `uv.lock`. None for the project that the lock file belongs to, and
    for a package without a version.
    """
    name, source = package["name"], package.get("source", {})
    inner = source.get("subdirectory", "")
    source_folder = None
    if "registry" in source:
        return _Locked(name, f"{name}=={package['version']}") if "version" in package else None
    if "git" in source:
        repository, _, commit = source["git"].partition("#")
        parts = urlsplit(repository)
        inner = dict(parse_qsl(parts.query)).get("subdirectory", "")
        url = f"git+{urlunsplit(parts._replace(query=''))}@{commit}"
    elif "url" in source:
        url = source["url"]
    elif "path" in source:
        url = (folder / source["path"]).resolve().as_uri()
    else:
        source_folder = folder / (source.get("editable") or source.get("directory") or ".")
        source_folder = source_folder.resolve()
        if source_folder == folder.resolve():
            return None
        url = source_folder.as_uri()
    return _Locked(
        name, f"{name} @ {url}{f'#subdirectory={inner}' if inner else ''}", source_folder
    )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
