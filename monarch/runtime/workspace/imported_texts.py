"""The texts that a program's modules were imported from, if its imports are not followed.

A program that never gets a workspace need not pay for the reloader, and a folder is followed from
its first push on. So the code that runs is known only from files, which may have been edited by
then. They are read when the program spawns, soon after it has imported what it spawns.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from types import ModuleType

_INSTALLED = ("/site-packages/", "/dist-packages/")
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_OURS = frozenset({"monarch", "monarch_sync", "monarch_reload"})


class ImportedTexts:
    """The texts of imported modules. From any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, weakref.ref[ModuleType]] = {}
        self._texts: dict[str, tuple[str, bytes]] = {}
        self._stand: tuple[int, str, object] | None = None

    def look(self) -> None:
        """Read the files of the modules that were imported since the last look. Installed packages
        and unreadable files are left out.
        """
        stand = _stand()
        if stand is not None and stand == self._stand:
            return
        for name, module in sys.modules.copy().items():
            seen = self._seen.get(name)
            # By its type: cffi has objects that only claim to be modules.
            if not issubclass(type(module), ModuleType) or (seen is not None and seen() is module):
                continue
            self._seen[name] = weakref.ref(module)
            self._texts.pop(name, None)
            path = _file_of(name, module)
            if path:
                try:
                    self._texts[name] = path, Path(path).read_bytes()
                except OSError:
                    pass
        self._stand = stand

    def texts(self) -> dict[str, bytes]:
        """Return the texts by file, without modules that were unloaded or replaced since they were
        read.
        """
        return {
            path: text
            for name, (path, text) in self._texts.copy().items()
            if (module := self._seen[name]()) is not None and module is sys.modules.get(name)
        }


def _stand() -> tuple[int, str, object] | None:
    """Return a value that differs from an earlier one if a module was imported meanwhile; ``None``
    while an import is in progress.
    """
    try:
        last = next(reversed(sys.modules))
        return len(sys.modules), last, weakref.ref(sys.modules[last])
    except (KeyError, RuntimeError, TypeError):
        return None


def _file_of(name: str, module: ModuleType) -> str:
    """Return the file of a module, if it belongs to a project rather than to an installed package;
    else ""."""
    if name.partition(".")[0] in _OURS:
        return ""
    try:
        # Past the module's own `__getattr__`: a lazy one would load itself.
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return ""
    if not isinstance(path, str) or not path.endswith(".py") or path.startswith(_LIBRARY):
        return ""
    return "" if any(part in path for part in _INSTALLED) else path
