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

What to open, by what is to be changed:

- which names a statement, a function body takes; how they are spelled: `names.py`, `scopes.py`;
  `spelling.py`
- what an edit makes run again; which statement comes from which old one: `plan.py`;
  `alignment.py`
- what of an edited file is read and compiled; which of its statements the plan looks at:
  `splice.py`, `codes.py`; `concern.py`
- what reload does to a class, to an Enum, to a function, to a lambda: `classes.py`, `enums.py`,
  `patch.py`, `lambdas.py`
- which live object a definition made, and what goes on in which: `adopt.py`, `heirs.py`,
  `hidden.py`
- a module that becomes a package; torch's operators; loggers and signals: `reshaping.py`;
  `operators.py`; `outside.py`
- what of live objects staged code may change; how it sees them; what an object is, without waking
  it: `holders.py`, `held_attributes.py`; `disguises.py`; `kinds.py`
- what a refused reload takes back: `lookout.py`, `registries.py`, `held_back.py`, `targets.py`
- whether other threads ran meanwhile; what happened to a container; what `import *` brings:
  `turns.py`; `differences.py`; `stars.py`
- what tables and registries hold, and what staged code sees of them; assignments taken away; whom
  an edit concerns: `tables.py`, `shadows.py`; `strays.py`; `importers.py`
- what of a module its import executes; who decides where that fails, and how long it may take:
  `guards.py`; `spare.py`, `spare_import.py`, `budget.py`, once a host:
  `monarch/runtime/workspace/shared_trial.py`
- which edits count only when a run begins again; whether that could go on from a checkpoint:
  `at_start.py`, `start_helpers.py`; `monarch_recipes/next_start.py`,
  `monarch_recipes/titan_next_start.py`
- what edited functions will trip over: `code_warnings.py`, `unbound_names.py`, `misfit_calls.py`
- reload in a notebook: `extension.py`
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
