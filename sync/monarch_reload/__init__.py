"""Reload changed modules in a running process: prepare, commit, abort.

    reloader = Reloader(["/path/to/project"])
    report = reloader.reload(["model.py"])  # or reload(): whatever changed on disk
    print(report)                           # a table; report.undo() goes back

or in two steps, with texts that need not be on disk yet:

    prepared = reloader.prepare({"/path/to/project/model.py": b"..."})
    report = prepared.commit()              # or prepared.abort()

In IPython and notebooks, `%load_ext monarch_reload` does it before each cell.

Live objects take the new code in place, values bound by unchanged top-level statements are kept,
and if the new code fails, the old code stays as it was.

How an edit gets there:

    source        the text that each module runs, and its new text (`source.source`)
    statements    both as lists of top-level statements (`source.statements`)
    alignment     which new statement comes from which old one (`source.alignment`)
    marks         the effect of an edited name on code that uses it; repeated until no mark is new
                  (`plan.dirty_marks`, `plan.propagation`); the marked statements are the plan
    trial run     the plan runs in a namespace laid over the live one (`trial.stage`); its effects
                  on live objects are noted and taken back (`trial.side_effects`)
    adopt         the new objects are matched with the live objects, as a list of flips (`adopt`)
    undo log      a commit carries the flips out; each can be put back (`undo_log`)
    audit         afterwards: live objects are compared with what a fresh import gives (`audit`)

Arrows between the rooms point down: trial, plan, live, source; below all of them is `kinds`.

What to open, by what you change:

- which live object a definition made, and what continues it: `adopt.py`, `pairing.py`
- a module that becomes a package: `reshaping.py`; config files: `data_files.py`
- what type an object has, without loading a lazy one: `kinds.py`
- whether other threads ran meanwhile: `thread_switches.py`
- the result of a reload: `verdicts.py`, `report.py`, `errors.py`
- which edits count only when a run begins again: `at_start.py`; whether that could go on from a
  checkpoint: `monarch_recipes/next_start.py`, `monarch_recipes/titan/next_start.py`
- a class that came by value: `upgrade.py`
- which files on disk differ from the code that runs: `running_files.py`
- reload in a notebook: `ipython.py`
"""

from monarch_reload.at_start import at_start
from monarch_reload.audit.findings import AuditReport
from monarch_reload.data_files import SUFFIXES as CONFIG_SUFFIXES
from monarch_reload.errors import NeedsRespawn, ReloadError
from monarch_reload.ipython import load_ipython_extension, unload_ipython_extension
from monarch_reload.prepared import Mode, Prepared
from monarch_reload.reloader import Reloader
from monarch_reload.report import ModuleVerdict, ReloadReport, Verdict
from monarch_reload.undo_log import Action
from monarch_reload.upgrade import ClassUpgrade

__all__ = [
    "CONFIG_SUFFIXES",
    "Action",
    "AuditReport",
    "ClassUpgrade",
    "Mode",
    "ModuleVerdict",
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
