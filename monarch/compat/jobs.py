"""Kinds of job that libraries import at their top, and that are not there yet."""

from __future__ import annotations

from typing import Any


class SSHJob:
    """Hosts reached by SSH."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "this release has no SSHJob: start `monarch host --address tcp://NAME:PORT` on each "
            "machine, with the same MONARCH_JOB_SECRET, and use attach_to_workers(workers=[...])"
        )
