"""Watches a run's config file while it runs: some keys may change between two steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from monarch.config_file import ConfigError, changed_keys, live_keys, with_keys_of

C = TypeVar("C")

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class ConfigChange:
    """The result of an edit of a config file.

    ``applied`` and ``waiting`` have old and new values by dotted key; ``waiting`` ones need a
    restart. ``error`` says why the file cannot be used.
    """

    path: Path
    applied: Mapping[str, tuple[Any, Any]]
    waiting: Mapping[str, tuple[Any, Any]]
    error: str = ""

    @property
    def text(self) -> str:
        """Return a line for a person; if the file cannot be used, also the lines of the error."""
        if self.error:
            return f"{self.path} was changed, and cannot be used; nothing changes. {self.error}"
        parts = []
        if self.applied:
            parts.append("now " + _listed(self.applied))
        if self.waiting:
            parts.append(
                f"{_listed(self.waiting)} needs a restart: after Ctrl-C the same command begins a "
                "new run, at step 0; with --resume it goes on with what this one has learned, "
                "where that still fits"
            )
        return f"{self.path} was changed: " + "; ".join(parts or ["nothing that matters"])

    def data(self) -> dict[str, Any]:
        """Return the change as the data of an event."""
        return {
            "file": str(self.path),
            "applied": {key: list(map(_plain, pair)) for key, pair in self.applied.items()},
            "waiting": {key: list(map(_plain, pair)) for key, pair in self.waiting.items()},
            **({"error": self.error} if self.error else {}),
        }


class LiveConfig(Generic[C]):
    """The current ``config``: keys that may change live have the files' latest values.

    ``files`` has for each file a function that reads a config from it. A poll costs one ``stat``
    for each file. The first file is the run's own. If another file has changed, ``write`` writes
    the changed config to the run's own file.
    """

    def __init__(
        self,
        config: C,
        files: Mapping[Path, Callable[[], C]],
        write: Callable[[C], None] = lambda config: None,
    ) -> None:
        self.config = config
        self._files = dict(files)
        self._stamps = {path: _stamp(path) for path in files}
        self._live_keys = set(live_keys(type(config)))
        #: The config that was last read from each file.
        self._last_read = dict.fromkeys(files, config)
        #: The run's own file.
        self._own_file = next(iter(files), None)
        self._write = write

    def poll(self) -> ConfigChange | None:
        """Apply changes since the last poll and return them; ``None`` if there are none."""
        for path, read in self._files.items():
            stamp = _stamp(path)
            # Editors leave a file empty for a moment, and a full disk for longer.
            if stamp is None or stamp == self._stamps[path] or not stamp[1]:
                continue
            self._stamps[path] = stamp
            change = self._read(path, read)
            if change is not None:
                return change
        return None

    def _read(self, path: Path, read: Callable[[], C]) -> ConfigChange | None:
        try:
            config = read()
        except ConfigError as error:
            return ConfigChange(path, {}, {}, str(error))
        # Only edited keys count: a key that another file changed live stays so.
        edited = changed_keys(self._last_read[path], config)
        self._last_read[path] = config
        changes = {key: (_at(self.config, key), _at(config, key)) for key in edited}
        changes = {key: pair for key, pair in changes.items() if pair[0] != pair[1]}
        if not changes:
            return None
        applied = {key: pair for key, pair in changes.items() if key in self._live_keys}
        waiting = {key: pair for key, pair in changes.items() if key not in self._live_keys}
        try:
            self.config = with_keys_of(self.config, config, list(applied))
        except ConfigError as error:
            return ConfigChange(path, {}, {}, str(error))
        own_file = self._own_file
        if applied and own_file is not None and own_file != path:
            self._write(self.config)
            self._stamps[own_file], self._last_read[own_file] = _stamp(own_file), self.config
        return ConfigChange(path, applied, waiting)


def _stamp(path: Path) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name, None)  # A config of a chosen class may lack the key.
    return config


def _plain(value: Any) -> Any:
    is_plain = isinstance(value, (bool, int, float, str, list, dict, type(None)))
    return value if is_plain else str(value)


def _listed(changes: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} = {new} (was {old})" for key, (old, new) in changes.items())
