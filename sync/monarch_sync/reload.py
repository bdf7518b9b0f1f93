"""The former address of ``monarch_reload``, of its names and of its modules.

Modules that were imported from ``monarch_sync.reload`` still are, and pickles that name them are
still read: each module here is the one at its new address, not a second copy of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

import monarch_reload
from monarch_reload import *  # noqa: F403

__all__ = monarch_reload.__all__
__path__: list[str] = []  # It has submodules, and no folder: the finder below knows them.

# Former name -> present name, where modules have moved or were given another name.
_MOVED = {
    "adopt": "adopt",
    "alignment": "source.alignment",
    "at_start": "at_start",
    "budget": "trial.budget",
    "classes": "live.classes",
    "closures": "live.closures",
    "code_warnings": "plan.code_warnings",
    "codes": "source.codes",
    "concern": "plan.concern",
    "data_files": "data_files",
    "differences": "live.differences",
    "disguises": "trial.stand_ins",
    "edits": "plan.edits",
    "enums": "live.enums",
    "errors": "errors",
    "extension": "ipython",
    "flips": "undo_log",
    "graph": "plan.graph",
    "guards": "source.guards",
    "heirs": "successors",
    "held_attributes": "trial.held_attributes",
    "held_back": "trial.held_back",
    "hidden": "live.live_functions",
    "holders": "live.holders",
    "importers": "plan.importers",
    "kinds": "kinds",
    "lambdas": "live.lambdas",
    "late_defaults": "live.classes",
    "lines": "source.lines",
    "lookout": "trial.side_effects",
    "marks": "plan.dirty_marks",
    "members": "plan.members",
    "misfit_calls": "plan.misfit_calls",
    "names": "source.names",
    "operators": "plan.plan",
    "outside": "trial.outside",
    "patch": "live.patch",
    "plan": "plan.plan",
    "prepared": "prepared",
    "reach": "plan.propagation",
    "reading_ahead": "data_files",
    "registrars": "live.registrars",
    "registries": "live.registries",
    "report": "report",
    "reshaping": "reshaping",
    "running_files": "running_files",
    "scopes": "source.scopes",
    "settle": "live.settle",
    "shadows": "trial.container_copies",
    "source": "source.source",
    "spare": "trial.spare",
    "spare_import": "trial.spare_import",
    "spelling": "source.spelling",
    "splice": "source.splice",
    "stage": "trial.stage",
    "staged_module": "live.staged_module",
    "stars": "plan.stars",
    "start_helpers": "plan.start_helpers",
    "statements": "source.statements",
    "strays": "plan.removed_assignments",
    "tables": "live.tables",
    "targets": "live.targets",
    "transaction": "reloader",
    "turns": "thread_switches",
    "twins": "plan.staged_copies",
    "unbound_names": "plan.unbound_names",
    "upgrade": "upgrade",
    "verdicts": "verdicts",
}


class _FormerAddresses:
    """Both the finder and the loader of the modules at former addresses."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if parent != __name__ or name not in _MOVED:
            return None
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = import_module(f"monarch_reload.{_MOVED[name]}")


if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
    sys.meta_path.append(_FormerAddresses())
