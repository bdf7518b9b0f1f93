"""The source that each of our modules is running: its text as it was imported.

The file on disk may already be the next version when a reload is asked for, so an import hook
remembers the bytes. It compiles them itself: a bytecode file is trusted by whole-second mtime
and size alone, and would hand out yesterday's code for a quick edit of the same length.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import importlib.util
import operator
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import msgspec

from monarch_reload.kinds import is_waiting, own_names
from monarch_reload.source.codes import Codes, moved_code
from monarch_reload.source.statements import Statement, split

ENCODING_COMMENT = re.compile(rb"(?:[^\n]*\n)?[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


class ModuleSource(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One version of one file. ``witnessed`` is True if its text was recorded during the import of
    the module. It is False if it was read later from the file, which may have changed since.
    """

    path: str  # as the module's code objects spell it
    text: bytes
    witnessed: bool = True
    seen_ns: int = msgspec.field(default_factory=time.time_ns)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def lines(self) -> Sequence[str]:
        return decoded_lines(self.text)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return split(self.tree.body, self.lines)

    @cached_property
    def code(self) -> CodeType:
        code: CodeType = compile(self.tree, self.path, "exec", dont_inherit=True)
        return code

    @cached_property
    def flags(self) -> int:
        """The compiler flags of its `from __future__` imports, which all code compiled from it
        needs."""
        flags: int = self.code.co_flags & _FUTURE_FLAGS
        return flags

    @cached_property
    def codes(self) -> Codes:
        return Codes.inside(self.code)

    def copy_codes(self) -> None:
        """Replace the code objects by copies. Call it before the lines of code objects that live
        functions run are changed in place, so that this source keeps the present lines.
        """
        computed = vars(self)
        if "codes" in computed:
            computed["codes"].copy_codes()
        if "code" in computed:
            computed["code"] = moved_code(computed["code"], 0)


_FUTURE_FLAGS = functools.reduce(
    operator.or_,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)


def decoded_lines(source: bytes) -> list[str]:
    """Return the lines of a source, as Python counts them."""
    # Form feeds and the like end a line for str.splitlines, not for Python.
    cookie = ENCODING_COMMENT.match(source)
    encoding = cookie.group(1).decode() if cookie else "utf-8"
    text = source.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n")


def read_text(path: str) -> bytes:
    """Return the bytes of a source file. For a binary module, return bytes that change if the
    file's status changes.
    """
    if path.endswith(".py"):
        return Path(path).read_bytes()
    status = os.stat(path)
    return repr((status.st_mtime_ns, status.st_size, status.st_ino)).encode()


_SECONDS_A_BYTE = 0.5e-6  # estimate for a module whose import was not measured

# A virtual environment often lies inside the project.
_INSTALLED = frozenset({"site-packages", "dist-packages"})

# Python itself often lies in the home folder, which is a root of programs that a login starts.
_OF_PYTHON = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(key)), "") for key in ("stdlib", "platstdlib")
)


class RunningSources:
    """The sources that the loaded modules under some roots run, by module name.

    `imported` returns the texts, by file, of modules that were loaded before this object was made.
    """

    def __init__(self, imported: Callable[[], Mapping[str, bytes]]) -> None:
        self._imported = imported
        self._roots: list[str] = []
        self._sources: dict[str, ModuleSource] = {}
        self._names: dict[str, list[str]] = {}  # real path -> modules loaded from it
        self._elsewhere: set[str] = set()  # files in folders that are in no root
        self._seconds: dict[str, float] = {}  # how long each measured import took
        self._elsewhere_texts: dict[str, bytes] = {}  # see `witness`
        self._inside = threading.local()

    def add_root(self, root: str | Path) -> None:
        real = os.path.join(os.path.realpath(root), "")
        if real not in self._roots:  # each push adds its roots again
            self._roots.append(real)
            self._elsewhere.clear()
        elsewhere, imported = self._elsewhere, self._imported()
        # Copied in one step, during which no other thread can import.
        for name, module in sys.modules.copy().items():
            if type(module) is ModuleType:  # nearly all, and there may be thousands
                path = module.__dict__.get("__file__")
            else:
                path = None if is_waiting(module) else own_names(module).get("__file__")
            if not isinstance(path, str) or path in elsewhere:
                continue
            source = self._sources.get(name)
            if source is not None and (source.path == path or not os.path.isabs(path)):
                continue  # else a module of that name came from another path
            if not self._has_folder_of(path):
                elsewhere.add(path)
            elif self.owns(path):
                text = imported.get(path, self._elsewhere_texts.get(path))
                try:
                    text = read_text(path) if text is None else text
                except OSError:
                    continue
                self.record(name, ModuleSource(path, text, witnessed=False))

    def witness(self, path: str) -> None:
        """Remember the text of an imported file that is in no root. Its folder may become a root
        later, when the file may have changed."""
        with contextlib.suppress(OSError):
            self._elsewhere_texts[path] = read_text(path)

    def owns(self, path: str) -> bool:
        if not self._has_folder_of(path):
            return False
        real = os.path.realpath(path)
        return any(
            real.startswith(root) and _INSTALLED.isdisjoint(real[len(root) :].split(os.sep))
            for root in self._roots
        )

    def _has_folder_of(self, path: str) -> bool:
        """Return whether a file's folder is in a root. A folder's real path is looked up only
        once."""
        folder = _real_folder(os.path.dirname(path)) + os.sep
        of_python = folder.startswith(_OF_PYTHON)
        return any(
            folder.startswith(root) and (not of_python or root.startswith(_OF_PYTHON))
            for root in self._roots
        )

    def record(self, name: str, source: ModuleSource) -> None:
        before = self._sources.get(name)
        if before is not None and before.path != source.path:
            # By name, not by real path: a link in the path may have changed since.
            for names in self._names.values():
                if name in names:
                    names.remove(name)
        self._sources[name] = source
        names = self._names.setdefault(os.path.realpath(source.path), [])
        if name not in names:
            names.append(name)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure the processor time of a module's import, which happens in this block. The imports
        of other reloadable modules inside it are not counted.
        """
        outside = getattr(self._inside, "seconds", 0.0)
        self._inside.seconds, started = 0.0, time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - started
            self._seconds[name] = seconds - self._inside.seconds
            self._inside.seconds = outside + seconds

    def import_seconds(self) -> float:
        """Return the processor time that importing all loaded modules takes, in seconds; estimated
        by size for modules whose import was not seen."""
        return sum(
            self._seconds.get(name, len(source.text) * _SECONDS_A_BYTE)
            for name, source in self.running()
        )

    def __getitem__(self, name: str) -> ModuleSource:
        return self._sources[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def names_at(self, path: str) -> list[str]:
        """Return the modules of this process that were loaded from the file."""
        return [n for n in self._names.get(os.path.realpath(path), ()) if n in sys.modules]

    def loaded(self) -> Iterator[tuple[str, ModuleType]]:
        """Yield (name, module) of every loaded module that can be reloaded, in the order of
        import."""
        for name in list(self._sources):
            module = sys.modules.get(name)
            # Some modules put another object in their place.
            if isinstance(module, ModuleType):
                yield name, module

    def running(self) -> Iterator[tuple[str, ModuleSource]]:
        """Yield the source that each loaded module runs, by module name."""
        for name, source in list(self._sources.items()):
            if sys.modules.get(name) is not None:
                yield name, source


class ImportHook:
    """A finder in front of all others: it lets the others find a module, and records the text that
    is loaded.

    ``pending`` are the texts of files that a prepare changes, by path; the disk does not have them
    yet. ``arriving`` has the paths of further new files, each with the path at which its text is
    now. New code may import both. ``on_loaded`` has functions by the name of a module of another
    package; each is called when that module has been loaded.
    """

    def __init__(
        self, sources: RunningSources, on_loaded: Mapping[str, Callable[[], None]]
    ) -> None:
        self._sources = sources
        self._on_loaded = on_loaded
        self.pending: dict[str, bytes] = {}
        self.arriving: dict[str, str] = {}
        self.builtins: dict[str, object] | None = None  # for modules imported during a prepare
        self.imported: list[str] = []
        self.thread = 0  # the thread that prepares; imports of other threads are not affected

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = (
            self._pending_spec(fullname, path)
            or self._others(fullname, path, target)
            or self._pending_folder(fullname, path)
        )
        if spec is None or not isinstance(spec.origin, str) or not spec.has_location:
            return spec
        if type(spec.loader) is SourceFileLoader and self._sources.owns(spec.origin):
            spec.loader = _RecordingLoader(fullname, spec.origin, self, self._sources)
        elif fullname in self._on_loaded and type(spec.loader) is SourceFileLoader:
            spec.loader = _NotifyingLoader(fullname, spec.origin, self._on_loaded[fullname])
        elif _is_found_from_here(spec.origin):
            self._sources.witness(spec.origin)
        elif self._sources.owns(spec.origin) and fullname not in sys.modules:
            # A loader of another package (pytest rewrites asserts) will read the present file.
            self._sources.record(fullname, ModuleSource(spec.origin, read_text(spec.origin)))
        return spec

    def _others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        if self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec else None
            if isinstance(spec, ModuleSpec):
                return spec
            if isinstance(finder, ImportHook):
                return None  # it has asked all finders behind it, other ImportHooks included
        return None

    def _pending_spec(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        for base in self._places(fullname, path):
            for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if candidate in self.pending or candidate in self.arriving:
                    return importlib.util.spec_from_file_location(fullname, candidate)
        return None

    def _pending_folder(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return the spec of a namespace package whose folder does not exist yet, but will have a
        new file. None if there is no such folder.
        """
        files = (*self.pending, *self.arriving)
        folders = [
            base
            for base in self._places(fullname, path)
            if any(file.startswith(base + os.sep) for file in files)
        ]
        if not folders:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec

    def _places(self, fullname: str, path: Sequence[str] | None) -> Iterator[str]:
        """Yield the paths, without a suffix, at which a module may be."""
        last = fullname.rpartition(".")[2]
        if self.pending or self.arriving:
            for folder in sys.path if path is None else path:
                yield os.path.join(os.path.realpath(folder or os.getcwd()), last)

    def text_of(self, path: str) -> bytes | None:
        """Return the content that a file will have after the reload; None if the reload does not
        bring this file.
        """
        real = os.path.realpath(path)
        if real in self.arriving:
            return Path(self.arriving[real]).read_bytes()
        return self.pending.get(real)


def _is_found_from_here(path: str) -> bool:
    """Return whether a relative entry of ``sys.path`` leads to a Python file from the working
    directory. False for installed packages."""
    entries = [entry for entry in sys.path if not os.path.isabs(entry)]
    folders = (os.path.join(os.path.abspath(entry), "") for entry in entries)
    is_there = path.endswith(".py") and any(path.startswith(folder) for folder in folders)
    return is_there and _INSTALLED.isdisjoint(path.split(os.sep))


class _RecordingLoader(SourceFileLoader):
    """Loads a module that can be reloaded, and records the text that it runs and how long its
    import takes."""

    def __init__(self, fullname: str, path: str, hook: ImportHook, sources: RunningSources) -> None:
        super().__init__(fullname, path)
        self._hook = hook
        self._sources = sources

    def get_data(self, path: str) -> bytes:
        text = self._hook.text_of(path)
        return super().get_data(path) if text is None else text

    def get_code(self, fullname: str) -> CodeType:
        data = self.get_data(self.path)
        code: CodeType = self.source_to_code(data, self.path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        with self._sources.timed(module.__name__):
            self._exec(module)

    def _exec(self, module: ModuleType) -> None:
        source = ModuleSource(self.path, self.get_data(self.path))
        # Straight from the bytes that are remembered: a file may change between two reads.
        code = self.source_to_code(source.text, self.path)
        if self._hook.builtins is not None and self._hook.thread == threading.get_ident():
            module.__dict__["__builtins__"] = self._hook.builtins
            self._hook.imported.append(module.__name__)
        vars(source)["code"] = code
        self._sources.record(module.__name__, source)
        exec(code, module.__dict__)


class _NotifyingLoader(SourceFileLoader):
    """Loads a module, and then calls a function."""

    def __init__(self, fullname: str, path: str, tell: Callable[[], None]) -> None:
        super().__init__(fullname, path)
        self._tell = tell

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._tell()


def forget_bytecode(paths: Iterable[str]) -> None:
    """Remove the cached bytecode of these source files. A later process could take it for the
    bytecode of the new sources.
    """
    for path in paths:
        folder, name = os.path.split(path)
        with contextlib.suppress(OSError):  # read-only, or another process of this host was faster
            for entry in os.listdir(os.path.join(folder, "__pycache__")):
                if entry.startswith(f"{name.removesuffix('.py')}.") and entry.endswith(".pyc"):
                    os.unlink(os.path.join(folder, "__pycache__", entry))


def real_path(path: str) -> str:
    """Return the real path of a file. The file itself must be no link, only its folder is resolved;
    this is fast for many files of few folders."""
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder), name)


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
