"""`%load_ext monarch_sync.reload`: edited modules reload before the next cell runs."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from typing import Any

from .errors import ReloadError
from .transaction import Reloader

_EVENT = "pre_run_cell"
_ATTRIBUTE = "_monarch_reload_before_cell"


class ReloadBeforeCell:
    """A stat of every loaded module decides; the text decides where the stat has moved."""

    def __init__(self, reloader: Reloader) -> None:
        self.reloader = reloader
        self._stats: dict[str, tuple[int, int, int, int]] = {}

    def __call__(self, *_: Any) -> None:
        changed = self.changed_paths()
        if not changed:
            return
        try:
            report = self.reloader.reload(changed)
        except ReloadError as error:
            print(error, file=sys.stderr)  # noqa: T201
        else:
            names = [*report.classes, *report.functions]
            print(f"reloaded {', '.join(report.modules)}", *names, sep="\n  ")  # noqa: T201

    def changed_paths(self) -> list[str]:
        changed = []
        for _, source in list(self.reloader.loaded()):
            try:
                found = os.stat(source.path)
            except OSError:
                continue  # deleted: the module stays loaded
            stat = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
            if self._stats.get(source.path) == stat:
                continue
            self._stats[source.path] = stat
            with open(source.path, "rb") as file:
                if file.read() != source.text:
                    changed.append(source.path)
        return changed


def project_roots() -> list[str]:
    """`sys.path` without the standard library and installed packages."""
    paths = sysconfig.get_paths()
    installed = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    barred = tuple(os.path.join(os.path.realpath(path), "") for path in installed)
    roots = [os.path.realpath(entry or os.getcwd()) for entry in sys.path]
    return [
        root
        for root in dict.fromkeys(roots)
        if os.path.isdir(root) and not os.path.join(root, "").startswith(barred)
    ]


def load_ipython_extension(ip: Any) -> None:
    before_cell = ReloadBeforeCell(Reloader(project_roots()))
    before_cell.changed_paths()
    setattr(ip, _ATTRIBUTE, before_cell)
    ip.events.register(_EVENT, before_cell)


def unload_ipython_extension(ip: Any) -> None:
    before_cell = getattr(ip, _ATTRIBUTE)
    ip.events.unregister(_EVENT, before_cell)
    before_cell.reloader.close()
