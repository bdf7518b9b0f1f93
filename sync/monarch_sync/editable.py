"""Editable installs: packages of the author's environment that are folders of source code.

The hosts' environments lack these packages, or import them from paths that the hosts do not have.
So packages outside the workspace are pushed as folders of their own, ``__editable__.NAME``, from
which they can be imported. A package whose name differs from its folder's cannot be pushed so.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from monarch_sync.workspace import Folder, Workspace

_RUNTIME = "monarch-loop"  # The hosts have it already; a push must not replace it.
_MAPPING = re.compile(r"^MAPPING(?:\s*:[^=\n]*)?\s*=\s*(\{[^\n]*\})", re.MULTILINE)


class Editable(NamedTuple):
    """A package that is installed editable. ``roots`` are the folders from which Python imports
    it."""

    name: str
    roots: tuple[Path, ...]


def editable_folders(workspace: Workspace, path: Iterable[str] | None = None) -> list[Folder]:
    """Return the folders of editable installs that are outside of ``workspace``. Each ``Folder``
    says where in the replica it lands.

    Packages are looked up on ``path``; None: on ``sys.path``. Empty if ``workspace.editable`` is
    off or the workspace has no folders.
    """
    if not workspace.editable or not workspace.folders:
        return []
    covered = [folder.local for folder in workspace.folders]
    folders: list[Folder] = []
    for editable in editable_installs(path):
        for number, root in enumerate(editable.roots):
            if not any(root == folder or folder in root.parents for folder in covered):
                end = f".{number}" if number else ""
                folders.append(Folder(root, f"__editable__.{editable.name}{end}"))
                covered.append(root)
    return folders


def editable_installs(path: Iterable[str] | None = None) -> list[Editable]:
    """Return the editable installs among the packages that can be imported from the folders
    ``path``; None: from ``sys.path``.
    """
    installs: dict[str, Editable] = {}
    for package in metadata.distributions(path=list(sys.path if path is None else path)):
        name = _name_if_editable(package)
        if name and name != _RUNTIME and (roots := tuple(dict.fromkeys(_roots(package)))):
            installs.setdefault(name, Editable(name, roots))
    return sorted(installs.values())


def _name_if_editable(package: metadata.Distribution) -> str:
    """Return the name of a package that was installed editable from a folder; "" for others."""
    try:
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if origin["dir_info"]["editable"] and origin["url"].startswith("file:"):
            return re.sub(r"[-_.]+", "-", package.name).lower()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # It is installed otherwise, or broken.
    return ""


def _roots(package: metadata.Distribution) -> Iterator[Path]:
    """Yield the folders from which Python imports an editable package. They are read from the
    package's `.pth` file, or from the module of its import finder.
    """
    for file in package.files or ():
        if len(file.parts) > 1 or not file.name.endswith((".pth", "_finder.py")):
            continue
        try:
            text = Path(str(package.locate_file(file))).read_text(errors="surrogateescape")
        except OSError:
            continue
        if file.name.endswith(".pth"):
            yield from _named_by(text)
        elif "editable" in file.name:
            yield from _found_by(text)


def _named_by(pth: str) -> Iterator[Path]:
    """Yield the folders that a `.pth` file names."""
    for line in pth.splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "import ", "import\t")):
            folder = Path(line)
            if folder.is_absolute() and folder.is_dir():
                yield folder.resolve()


def _found_by(finder: str) -> Iterator[Path]:
    """Yield the folders of the packages that an import finder maps to their paths."""
    match = _MAPPING.search(finder)
    if match is None:
        return
    try:
        mapping = ast.literal_eval(match[1])
    except (ValueError, SyntaxError):
        return
    for name, location in mapping.items():
        path = Path(location)
        if path.is_dir() and path.name == name.rpartition(".")[2]:
            yield path.resolve().parents[name.count(".")]
        elif path.with_suffix(".py").is_file() and path.stem == name:
            yield path.resolve().parent
