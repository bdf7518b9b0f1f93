"""Objects that `gc.freeze` has put out of sight: `gc.get_objects` and `gc.get_referrers` do not
know them.

Templates of processes freeze what they import, and programs freeze their model before they train.
Nothing lists what is frozen, and nothing but `gc.unfreeze` brings it back, all of it at once. So
that is done where an edit is of a module that is frozen, and only there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

from monarch_reload.live.all_objects import are_all_seen


class Thaw:
    """Undoes `gc.freeze` where it hides one of the modules that are asked about."""

    def __init__(self) -> None:
        self._count = gc.get_freeze_count()
        self._suspects = _ids_of_modules() if self._count else set()
        """Modules that may be frozen. To look for one goes through all objects; what is imported
        after the last freeze is not among them."""

    def __call__(self, names: Iterable[str]) -> bool:
        """Have the collector see what these modules have made; whether it had to be done."""
        count = gc.get_freeze_count()
        if count > self._count:  # Somebody has frozen more.
            self._suspects = _ids_of_modules()
        self._count = count
        modules = map(sys.modules.get, names)
        asked = {id(one): one for one in modules if id(one) in self._suspects}
        if not asked:
            return False
        if are_all_seen(asked.values()):
            self._suspects -= asked.keys()
            return False
        gc.unfreeze()
        self._count = 0
        self._suspects.clear()
        return True


def _ids_of_modules() -> set[int]:
    return {id(module) for module in sys.modules.copy().values() if module is not None}
