"""Reload changed modules in a running process: prepare, commit, abort.

    reloader = Reloader(["/path/to/project"])
    report = reloader.reload(["model.py"])  # or reload(): whatever changed on disk
    print(report)                           # a table; report.undo() goes back

or in two steps, with texts that need not be on disk yet:

    prepared = reloader.prepare({"/path/to/project/model.py": b"..."})
    report = prepared.commit()              # or prepared.abort()

In IPython and notebooks, `%load_ext monarch_sync.reload` does it before each cell.

Live objects take the new code in place, top-level statements that did not change keep what
they bound, and new code that fails leaves the old code whole.
"""

from .at_start import at_start
from .data_files import SUFFIXES as CONFIG_SUFFIXES
from .errors import NeedsRespawn, ReloadError
from .extension import load_ipython_extension, unload_ipython_extension
from .flips import Action
from .prepared import Mode, Prepared
from .report import ReloadReport, Verdict
from .transaction import Reloader
from .upgrade import ClassUpgrade

__all__ = [
    "CONFIG_SUFFIXES",
    "Action",
    "ClassUpgrade",
    "Mode",
    "NeedsRespawn",
    "Prepared",
    "ReloadError",
    "ReloadReport",
    "Reloader",
    "Verdict",
    "at_start",
    "load_ipython_extension",
    "unload_ipython_extension",
]
