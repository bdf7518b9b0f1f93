"""Which files of running modules differ from the code that runs, found by looking at the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from monarch_reload.data_files import named_in
from monarch_reload.reshaping import other_shape
from monarch_reload.source.source import RunningSources, read_text

_Stat = tuple[int, int, int, int]
# The resolution of the file system's clock: a file that changed within it may change again and keep
# its times.
_RACY_NS = 50_000_000


class RunningFiles:
    """Finds changed files: by a stat of every file, and by the text of those whose stat changed."""

    def __init__(self, sources: RunningSources, roots: Sequence[str]) -> None:
        self._sources = sources
        self._roots = roots
        self._data: dict[str, _Stat | None] = {}  # config files, as last returned
        self._named: dict[str, tuple[bytes, list[str]]] = {}  # module -> text, config files
        self._settled: dict[str, tuple[_Stat, bytes]] = {}  # by path; the file has that text
        self._deleted: set[str] = set()

    def changed(self) -> list[str]:
        """Return the paths of files whose text differs from the text that their modules run. A
        deleted file is returned only once, the others at every call."""
        changed = []
        for path, text in {s.path: s.text for _, s in self._sources.running()}.items():
            stat = stat_of(path)
            if stat is None:
                if path not in self._deleted:
                    self._deleted.add(path)
                    changed.append(path)
                if stat_of(other_shape(path)) is not None:
                    changed.append(other_shape(path))
                continue
            self._deleted.discard(path)
            if self._settled.get(path) == (stat, text):
                continue
            if self._differs(path, text):
                self._settled.pop(path, None)
                changed.append(path)
            elif max(stat[:2]) < time.time_ns() - _RACY_NS:
                self._settled[path] = (stat, text)
        return [*changed, *self._changed_data()]

    def _changed_data(self) -> list[str]:
        changed = []
        for name, source in self._sources.running():
            text, paths = self._named.get(name, (None, []))
            if text != source.text:
                folders = [os.path.dirname(source.path), *self._roots, os.getcwd()]
                paths = list(dict.fromkeys(named_in(source.text, folders)))
                self._named[name] = source.text, paths
            for path in paths:
                stat = stat_of(path)
                previous = self._data.setdefault(path, stat)
                # At first sight: written since the module was imported?
                young = text is None and stat is not None and stat[0] > source.seen_ns
                if stat != previous or young:
                    self._data[path] = stat
                    changed.append(path)
        return list(dict.fromkeys(changed))

    def _differs(self, path: str, text: bytes) -> bool:
        try:
            return read_text(path) != text
        except OSError:
            return False


def stat_of(path: str) -> _Stat | None:
    """Return the times, size and inode of a file, which differ after any change; None if there is
    no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
