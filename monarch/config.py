"""Settings of the runtime, in upstream's call style: ``configure(heartbeat_seconds=2.0)``.

Every setting can also be given in the environment as ``MONARCH_<NAME>`` in capitals, which
child processes inherit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

__all__ = ["Settings", "configure", "configured", "get_global_config", "settings"]


@dataclass(frozen=True)
class Settings:
    """All settings and their defaults. Durations are seconds."""

    heartbeat_seconds: float = 1.0
    heartbeat_timeout_seconds: float = 10.0
    attach_timeout_seconds: float = 30.0
    cleanup_timeout_seconds: float = 3.0
    stop_timeout_seconds: float = 10.0
    exit_timeout_seconds: float = 1.0
    log_tail_lines: int = 20
    switch_interval_seconds: float = 0.0005
    max_message_bytes: int = 10 * 2**30
    runtime_dir: str = ""

    def with_environment(self) -> Settings:
        """These settings, with what ``MONARCH_<NAME>`` variables say instead."""
        found: dict[str, Any] = {}
        for field in fields(self):
            text = os.environ.get(f"MONARCH_{field.name.upper()}")
            if text is not None:
                found[field.name] = type(getattr(self, field.name))(text)
        return replace(self, **found)


_current = Settings().with_environment()


def settings() -> Settings:
    """The settings in force."""
    return _current


def configure(**values: Any) -> dict[str, Any]:
    """Change settings of this process and of the procs it spawns from now on.

    Raises ``ValueError`` for an unknown name, ``TypeError`` for a wrong type.
    """
    global _current
    known = {field.name: type(getattr(_current, field.name)) for field in fields(_current)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown setting {name!r}; known ones: {', '.join(sorted(known))}")
        accepted = (int, float) if known[name] is float else (known[name],)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise TypeError(
                f"setting {name!r} takes {known[name].__name__}, not {type(value).__name__}"
            )
    _current = replace(_current, **values)
    return asdict(_current)


@contextmanager
def configured(**values: Any) -> Iterator[dict[str, Any]]:
    """``configure`` for the length of a ``with`` block."""
    global _current
    before = _current
    try:
        yield configure(**values)
    finally:
        _current = before


def get_global_config() -> dict[str, Any]:
    """The settings in force, as a dictionary."""
    return asdict(_current)


def runtime_dir() -> str:
    """A directory that only this user can enter, for Unix sockets. Made when missing."""
    base = settings().runtime_dir or os.path.join(tempfile.gettempdir(), f"monarch-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    status = os.lstat(base)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{base} must belong to you and be closed to others (mode 0700); remove it, or set "
            "MONARCH_RUNTIME_DIR to a directory of your own"
        )
    return base
