"""Editable installs: packages of the author's environment that are folders of source code.

The hosts' environments do not have them, or have them from paths that are not there. So those that
lie outside the workspace are pushed as folders of their own, ``__editable__.NAME``, from which they
can be imported. Packages whose names differ from their folders' cannot be brought that way.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from monarch_sync.workspace import Folder, Workspace

_RUNTIME = "monarch-loop"  # it runs on the hosts already, and is not to be replaced there
_MAPPING = re.compile(r"^MAPPING(?:\s*:[^=\n]*)?\s*=\s*(\{[^\n]*\})", re.MULTILINE)


class Editable(NamedTuple):
    """A package that is installed editable. ``roots``: the folders that it is imported from."""

    name: str
    roots: tuple[Path, ...]


def editable_folders(workspace: Workspace, path: Iterable[str] | None = None) -> list[Folder]:
    """Return the folders of editable installs outside of ``workspace``, with where each lands.

    ``path`` replaces ``sys.path``. The list is empty if the workspace does not want them.
    """
    if not workspace.editable or not workspace.folders:
        return []
    taken = [folder.local for folder in workspace.folders]
    found: list[Folder] = []
    for editable in editable_installs(path):
        for number, root in enumerate(editable.roots):
            if not any(root == known or known in root.parents for known in taken):
                end = f".{number}" if number else ""
                found.append(Folder(root, f"__editable__.{editable.name}{end}"))
                taken.append(root)
    return found


def editable_installs(path: Iterable[str] | None = None) -> list[Editable]:
    """Return the editable installs among the packages that can be imported from ``path``
    (``sys.path``)."""
    found: dict[str, Editable] = {}
    for site in dict.fromkeys(sys.path if path is None else path):
        for info in _infos(site):
            name = re.sub(r"[-_.]+", "-", info.name.partition("-")[0]).lower()
            if name not in found and name != _RUNTIME and _project_of(info):
                roots = tuple(dict.fromkeys(_roots(info)))
                if roots:
                    found[name] = Editable(name, roots)
    return sorted(found.values())


def _infos(site: str) -> list[Path]:
    try:
        with os.scandir(site or ".") as listing:
            return [Path(entry.path) for entry in listing if entry.name.endswith(".dist-info")]
    except OSError:
        return []


def _project_of(info: Path) -> Path | None:
    """Return the folder that a package was installed from; None if its code is no longer there."""
    try:
        told = json.loads((info / "direct_url.json").read_bytes())
        if not told["dir_info"]["editable"]:
            return None
        parts = urlsplit(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _roots(info: Path) -> Iterator[Path]:
    """Yield the folders that a package is imported from: those that its `.pth` file names, or where
    its import finder finds it."""
    for name in _installed(info):
        file = info.parent / name
        try:
            if name.endswith(".pth"):
                yield from _named_by(file.read_text(errors="surrogateescape"))
            elif "editable" in name and name.endswith("_finder.py"):
                yield from _found_by(file.read_text(errors="surrogateescape"))
        except OSError:
            continue


def _installed(info: Path) -> list[str]:
    try:
        lines = (info / "RECORD").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [
        line.rsplit(",", 2)[0].strip('"') for line in lines if "/" not in line.partition(",")[0]
    ]


def _named_by(text: str) -> Iterator[Path]:
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "import ", "import\t")):
            folder = Path(line)
            if folder.is_absolute() and folder.is_dir():
                yield folder.resolve()


def _found_by(text: str) -> Iterator[Path]:
    match = _MAPPING.search(text)
    if match is None:
        return
    try:
        mapping = ast.literal_eval(match[1])
    except (ValueError, SyntaxError):
        return
    for name, where in mapping.items():
        place = Path(where)
        if place.is_dir() and place.name == name.rpartition(".")[2]:
            yield place.resolve().parents[name.count(".")]
        elif place.with_suffix(".py").is_file() and place.stem == name:
            yield place.resolve().parent
