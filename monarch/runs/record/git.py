"""Asks git for the commit of a run's folder, without running any program of that folder.

A repository's own config may name programs: monitors of files, hooks, filters, pagers, remotes to
fetch a missing object from. So git is asked for names only, not whether files have changed: the
digest of the code shows that.
"""

from __future__ import annotations

import os
import subprocess

_SECONDS = 5.0
_NO_PROGRAMS = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat",
    "-c", "diff.external=", "--no-pager",
)  # fmt: skip
# They keep git from fetching missing objects, by any transport.
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


def commit_here() -> str | None:
    """Return the commit of the current folder, by a tag if one is near; ``None`` outside of git."""
    try:
        result = subprocess.run(
            ["git", *_NO_PROGRAMS, "describe", "--always", "--abbrev=12"],
            env={**os.environ, **_VARIABLES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
