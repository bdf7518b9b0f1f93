"""Asks git for the commit of a run's folder, without running any program of that folder.

A repository's own config may name programs: monitors of files, hooks, filters, pagers, remotes to
fetch a missing object from. So git is asked for names only, not whether files have changed: the
digest of the code shows that.
"""

from __future__ import annotations

import os
import subprocess

_SECONDS = 5.0
_NOTHING_RUNS = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat",
    "-c", "diff.external=", "--no-pager",
)  # fmt: skip
# Of objects that are missing none is fetched, by no transport.
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip


def commit_here() -> str | None:
    """Return the commit of the current folder, by a tag if one is near; ``None`` outside of git."""
    try:
        done = subprocess.run(
            ["git", *_NOTHING_RUNS, "describe", "--always", "--abbrev=12"],
            env={**os.environ, **_VARIABLES}, capture_output=True, text=True, timeout=_SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
