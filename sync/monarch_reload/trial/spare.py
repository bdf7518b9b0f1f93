"""Whether a fresh process can import a new state; asked if it cannot be prepared in place."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from monarch_reload.errors import ReloadError, line_of
from monarch_reload.source.source import ModuleSource

_SECONDS = 120.0
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spare_import.py")


class NewState(msgspec.Struct, frozen=True):
    """The state that a new process would find. ``files`` has, by real path, each file's text, or
    the path of its text; None for a deleted file.

    ``modules`` are (name, file), in the order in which they are imported; ``path`` is ``sys.path``.
    """

    files: Mapping[str, bytes | str | None]
    modules: Sequence[tuple[str, str]]
    path: Sequence[str]


Spare = Callable[[NewState], ReloadError | None]


def import_in_subprocess(state: NewState) -> ReloadError | None:
    """Return the error with which a fresh interpreter fails to import a state; None if it
    succeeds."""
    with tempfile.TemporaryDirectory(prefix="reload-") as folder:
        files = dict(_laid_out(state.files, Path(folder)))
        described = {
            "files": files,
            "modules": state.modules,
            "path": [os.path.abspath(entry) for entry in state.path],
            "argv": sys.argv,
        }
        description, answer = os.path.join(folder, "state.json"), os.path.join(folder, "answer")
        with open(description, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(described, file)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            ended = subprocess.run(
                [sys.executable, *flags, _SCRIPT, description, answer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            message = f"a fresh process has not imported it within {_SECONDS:g} s"
            return ReloadError(message, phase="run")
        try:
            failure = json.loads(Path(answer).read_text(encoding="utf-8"))
        except FileNotFoundError:
            words = ended.stderr.decode("utf-8", "replace").strip()
            message = f"a fresh process that imported it ended with status {ended.returncode}"
            return ReloadError(message, phase="run", traceback=words)
        return _refusal(failure, files) if failure else None


def is_surely_wrong(error: ReloadError, changed: Mapping[str, ModuleSource]) -> bool:
    """Return whether no process could run the code, because it reads a name that nothing binds."""
    cause = error.__cause__
    source = next((source for source in changed.values() if source.path == error.path), None)
    if type(cause) is not NameError or source is None or b"import *" in source.text:
        return False
    name = cause.name or ""
    if any(statement.is_opaque or name in statement.names.binds for statement in source.statements):
        return False
    return not hasattr(builtins, name) and f"global {name}".encode() not in source.text


def _laid_out(
    files: Mapping[str, bytes | str | None], folder: Path
) -> Sequence[tuple[str, str | None]]:
    """Write the texts into `folder`; return (file, path of its text) for each file. The second is
    None for a deleted file. A file that comes with the path of its text keeps that path.
    """
    paths: list[tuple[str, str | None]] = []
    for number, (path, content) in enumerate(files.items()):
        if isinstance(content, bytes):
            text_path = folder / f"{number}.py"
            text_path.write_bytes(content)
            content = str(text_path)
        paths.append((path, content))
    return paths


def _refusal(failure: Mapping[str, str], files: Mapping[str, str | None]) -> ReloadError:
    path, line = failure["path"], int(failure["line"] or 0)
    text = None
    if path:
        with contextlib.suppress(OSError):
            text = line_of(Path(files.get(os.path.realpath(path)) or path).read_bytes(), line)
    return ReloadError(
        failure["message"],
        phase="run",
        path=path,
        line=line or None,
        column=int(failure["column"]) if failure["column"] else None,
        text=text,
        traceback=failure["traceback"],
    )
