"""The job's secret, on its way from whoever started this process."""

from __future__ import annotations

import functools
import os

__all__ = ["take_secret"]


@functools.cache
def take_secret() -> bytes | None:
    """The job's secret, from the descriptor or the variable that the launcher left us.

    It is taken out of the environment, so that neither procs nor what they start can read it
    there; later calls remember it.
    """
    fd = os.environ.pop("MONARCH_JOB_SECRET_FD", None)
    text = os.environ.pop("MONARCH_JOB_SECRET", None)
    if fd is not None:
        with os.fdopen(int(fd)) as file:
            text = file.read()
    return bytes.fromhex(text.strip()) if text else None
