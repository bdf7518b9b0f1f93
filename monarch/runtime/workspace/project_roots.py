"""Which of a process's import folders it follows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def project_roots(paths: Sequence[str]) -> list[str]:
    """Return the import folders that contain a project rather than installed packages."""
    installed = tuple({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})
    roots = []
    for path in paths:
        real = os.path.realpath(path or ".")
        # The runtime does not reload itself, even from a source tree.
        is_ours = os.path.isdir(f"{real}/monarch_sync") or os.path.isdir(f"{real}/monarch/runtime")
        if os.path.isdir(real) and not real.startswith(installed) and not is_ours:
            roots.append(real)
    return roots
