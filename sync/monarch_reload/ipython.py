"""`%load_ext monarch_reload`: edited modules reload before the next cell runs."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from typing import Any

from monarch_reload.errors import NeedsRespawn, ReloadError
from monarch_reload.reloader import Reloader
from monarch_reload.running_files import stat_of

_BEFORE, _AFTER = "pre_run_cell", "post_run_cell"
_ATTRIBUTE = "_monarch_reload_before_cell"
_MAGIC = "monarch_reload"


class ReloadBeforeCell:
    """Reloads files that changed on disk; prints the report, and the old code that still runs.

    A refusal is printed once for each save.
    """

    def __init__(self, reloader: Reloader) -> None:
        self.reloader = reloader
        self.is_on = True
        self._refused: dict[str, object] = {}

    def __call__(self, *_: Any) -> None:
        if self.is_on:
            self.reload()

    def follow_path(self, *_: Any) -> None:
        """Follow the present `sys.path`: a cell may have added a folder, and imported from it."""
        for root in project_roots():
            self.reloader.add_root(root)

    def reload(self, again: bool = False) -> None:
        """Reload what changed on disk, and print the report or the refusal.

        If all changed files were refused before, and none was saved since, nothing is done unless
        `again` is true.
        """
        changed = self.reloader.changed_paths()
        stats = {path: stat_of(path) for path in changed}
        if not changed or (stats == self._refused and not again):
            return
        self._refused = {}
        try:
            report = self.reloader.reload(changed)
        except ReloadError as error:
            self._refused = dict(stats)
            print(error, file=sys.stderr)  # noqa: T201
            if isinstance(error, NeedsRespawn):
                print("Restart the kernel to run it.", file=sys.stderr)  # noqa: T201
        else:
            print(report)  # noqa: T201
            self._tell_old_code(changed)

    def _tell_old_code(self, changed: Sequence[str]) -> None:
        """Print the old code that still runs after a reload. This happens before the cell runs, as
        a running cell would itself refer to old objects."""
        audit = self.reloader.audit(changed)
        for text in audit.stale:
            print(f"old code: {text}", file=sys.stderr)  # noqa: T201
        for text in audit.kept:
            print(f"kept: {text}")  # noqa: T201
        if audit.stale:
            print("Make it anew, or restart the kernel.", file=sys.stderr)  # noqa: T201

    def magic(self, line: str) -> None:
        """%monarch_reload [on | off | now]: reload before each cell, or not, or at once.

        Without an argument, print the present setting.
        """
        word = line.strip().lower()
        if word == "now":
            self.reload(again=True)
            return
        if word not in ("", "on", "off"):
            print(f"%{_MAGIC} takes on, off or now, not {line.strip()!r}", file=sys.stderr)  # noqa: T201
            return
        self.is_on = word != "off" if word else self.is_on
        print(f"reload before each cell: {'on' if self.is_on else 'off'}")  # noqa: T201


def project_roots() -> list[str]:
    """Return `sys.path` without the standard library and installed packages."""
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
    """Reload what changed before each cell; registers ``%monarch_reload``. IPython calls it at
    ``%load_ext``."""
    before_cell = ReloadBeforeCell(Reloader(project_roots()))
    setattr(ip, _ATTRIBUTE, before_cell)
    ip.events.register(_BEFORE, before_cell)
    ip.events.register(_AFTER, before_cell.follow_path)
    ip.register_magic_function(before_cell.magic, "line", _MAGIC)


def unload_ipython_extension(ip: Any) -> None:
    """Stop reloading before cells, and remove the magic. IPython calls it at ``%unload_ext``."""
    before_cell = getattr(ip, _ATTRIBUTE)
    ip.events.unregister(_BEFORE, before_cell)
    ip.events.unregister(_AFTER, before_cell.follow_path)
    ip.magics_manager.magics["line"].pop(_MAGIC, None)
    before_cell.reloader.close()
