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
        self._count = 0
        self._in_sight: set[int] = set()  # modules that were found not to be frozen

    def __call__(self, names: Iterable[str]) -> bool:
        """Have the collector see what these modules have made; whether it had to be done."""
        count = gc.get_freeze_count()
        if count > self._count:  # Somebody has frozen more.
            self._in_sight.clear()
        self._count = count
        modules = [sys.modules.get(name) for name in names] if count else []
        asked = {id(one): one for one in modules if id(one) not in self._in_sight}
        asked.pop(id(None), None)
        if not asked:
            return False
        if are_all_seen(asked.values()):
            self._in_sight.update(asked)
            return False
        gc.unfreeze()
        self._count = 0
        return True
