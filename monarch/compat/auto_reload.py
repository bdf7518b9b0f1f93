"""Monarch's reloader: reloads changed modules of this process, one by one, on request.

Existing objects keep their old code, and a module that fails leaves the others half reloaded.
``monarch_reload.Reloader`` updates existing objects too, and all modules or none.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import site
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar, NamedTuple

from monarch_reload.running_files import stat_of

_YOUNG_SECONDS = 2.0

ImportCallback = Callable[[str, ModuleType], object]


class SysAuditImportHook:
    """Calls back with the name of each module that is imported, just before its code runs.

    A context manager: after its end, or after ``close``, there are no more calls.
    """

    _open: ClassVar[list[SysAuditImportHook]] = []
    _is_auditing: ClassVar[bool] = False
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, callback: ImportCallback) -> None:
        self._callback = callback

    @classmethod
    def install(cls, callback: ImportCallback) -> SysAuditImportHook:
        """Make a hook that calls back from now on."""
        hook = cls(callback)
        with cls._lock:
            cls._open.append(hook)
            if not cls._is_auditing:
                # The interpreter never removes an audit hook: one serves all.
                sys.addaudithook(_audit)
                cls._is_auditing = True
        return hook

    def close(self) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(self)

    def __enter__(self) -> SysAuditImportHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hear(self, code: CodeType) -> None:
        """Call back with the module whose file ``code`` comes from; do nothing if there is none.

        Called when ``code`` is about to run.
        """
        # The youngest first: an import has just added the module.
        for name, module in reversed(list(sys.modules.items())):
            file = _file_of(module)
            if file and _source_of(file) == _source_of(code.co_filename):
                self._callback(name, module)
                return


def _audit(event: str, args: tuple[Any, ...]) -> None:
    # An import by `importlib` raises no "import" event, but all run the module's code.
    if event != "exec" or not SysAuditImportHook._open:
        return
    code = args[0]
    if (
        isinstance(code, CodeType)
        and code.co_name == "<module>"
        and os.path.isabs(code.co_filename)
    ):
        for hook in list(SysAuditImportHook._open):
            with contextlib.suppress(Exception):  # A hook's error must not fail the import.
                hook.hear(code)


def _file_of(module: ModuleType) -> str | None:
    """Return a module's file, without waking a lazy module, which loads when any attribute is
    read."""
    with contextlib.suppress(AttributeError):
        file = object.__getattribute__(module, "__dict__").get("__file__")
        return file if isinstance(file, str) else None
    return None


class _FileStamp(NamedTuple):
    """The state of a file at one moment, by which a later change of the file is noticed.

    ``text`` is kept only if the file was written just before: a second write soon after the first
    may leave size and time unchanged.
    """

    stat: tuple[int, ...] | None
    text: bytes | None

    @classmethod
    def at(cls, file: str) -> _FileStamp:
        stat = stat_of(file)
        is_young = stat is not None and time.time() - max(stat[:2]) / 1e9 < _YOUNG_SECONDS
        return cls(stat, _text_of(file) if is_young else None)

    def differs(self, file: str) -> bool:
        return stat_of(file) != self.stat or (self.text is not None and _text_of(file) != self.text)


def _text_of(file: str) -> bytes | None:
    with contextlib.suppress(OSError):
        return Path(file).read_bytes()
    return None


def _source_of(file: str) -> str:
    """Return the source file of a bytecode file, as code objects name it."""
    return os.path.splitext(file)[0] + ".py" if file.endswith((".pyc", ".pyo")) else file


class AutoReloader:
    """Watches the modules that are imported, and those passed to ``import_callback``.

    The standard library is left out. ``reload`` is the function that reloads a changed module.
    """

    def __init__(self, reload: Callable[[ModuleType], ModuleType] = importlib.reload) -> None:
        self._reload = reload
        #: The file of each module, and its state when it was imported or reloaded.
        self._watched: dict[str, tuple[str, _FileStamp]] = {}
        installed = [Path(path) for path in site.getsitepackages()]
        self._installed = [path for path in installed if path.is_relative_to(sys.prefix)]
        for name, module in list(sys.modules.items()):
            self.import_callback(name, module)

    def import_callback(self, name: str, module: ModuleType) -> None:
        """Watch a module from the current state of its file."""
        file = _file_of(module)
        if file and os.path.isabs(file) and not self._is_standard(Path(file)):
            self._watched[name] = (file, _FileStamp.at(file))

    def _is_standard(self, file: Path) -> bool:
        is_below = file.is_relative_to(sys.prefix) or file.is_relative_to(sys.base_prefix)
        return is_below and not any(file.is_relative_to(path) for path in self._installed)

    def reload_changes(self) -> list[str]:
        """Reload modules that have changed since they were imported or reloaded last; return their
        names.

        An error of a reload is raised; that module is tried again the next time. A module whose
        file is gone is left as it is.
        """
        reloaded = []
        for name, (file, imported) in list(self._watched.items()):
            module = sys.modules.get(name)
            if module is None or not imported.differs(file):
                continue
            stamp = _FileStamp.at(file)
            if stamp.stat is None:
                continue
            if file.endswith(".py"):
                # Python would use the old bytecode if the new text has the same second and size.
                with contextlib.suppress(OSError, NotImplementedError):
                    os.unlink(cache_from_source(file))
            self._reload(module)
            self._watched[name] = (file, stamp)
            reloaded.append(name)
        return reloaded
