"""Reload changed modules in a running process: prepare, commit, abort.

    reloader = Reloader(["/path/to/project"])
    prepared = reloader.prepare({"/path/to/project/model.py": b"..."})
    report = prepared.commit()      # or prepared.abort(); later perhaps report.undo()

Live objects take the new code in place, top-level statements that did not change keep what
they bound, and new code that fails leaves the old code whole.
"""

from .errors import ReloadError
from .extension import load_ipython_extension, unload_ipython_extension
from .prepared import Mode, Prepared
from .report import ReloadReport, Verdict
from .transaction import Reloader

__all__ = [
    "Mode",
    "Prepared",
    "ReloadError",
    "ReloadReport",
    "Reloader",
    "Verdict",
    "load_ipython_extension",
    "unload_ipython_extension",
]
