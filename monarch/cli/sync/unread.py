"""Code that was pushed and that nobody has loaded yet, and that will not load either."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence

from monarch_sync import Workspace
from monarch_sync.words import printable

_MAX_FILES = 20  # as many as somebody edits at once
_MAX_BYTES = 1 << 20


def faults_in(changed: Sequence[str], workspace: Workspace) -> Iterator[str]:
    """What to know of a push that went well: processes look only at what they have loaded."""
    code = [path for path in changed if path.endswith(".py")]
    if len(code) > _MAX_FILES:
        return
    for path in code:
        local = next((place for place in workspace.locate(path) if place.is_file()), None)
        try:
            if local is None or local.stat().st_size > _MAX_BYTES:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(local.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"{printable(path)}:{line}" if line else printable(path)
            reason = getattr(error, "msg", None) or error or "it is nested too deeply"
            yield f"{where} does not compile: {reason}. It was pushed: no process has loaded it"
        except OSError:
            continue  # gone again
