"""Objects that `gc.freeze` has put out of sight: `gc.get_objects` and `gc.get_referrers` do not
know them.

Templates of processes freeze what they import, and programs freeze their model before they train.
Nothing lists what is frozen, and nothing but `gc.unfreeze` brings it back, all of it at once. So
that is done where an edit is of a module that is frozen, and only there.

Even to count what is frozen goes through all of it. So `gc.freeze` is replaced by a function that
notes which modules were there.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable

from monarch_reload.live.all_objects import are_all_seen

_freeze = gc.freeze
_suspects: set[int] = set()
"""The ids of modules that may be frozen. What is imported after the last freeze is not."""


def watch_freezes() -> None:
    """Note from now on what `gc.freeze` hides; what is frozen already may be any module."""
    if gc.freeze is not _freeze_and_note:
        if gc.get_freeze_count():
            _note()
        gc.freeze = _freeze_and_note


def thaw(names: Iterable[str]) -> bool:
    """Have the collector see what these modules have made; whether it had to be done."""
    modules = map(sys.modules.get, names)
    asked = {id(one): one for one in modules if id(one) in _suspects}
    if not asked:
        return False
    if are_all_seen(asked.values()):
        _suspects.difference_update(asked)
        return False
    gc.unfreeze()
    _suspects.clear()
    return True


@functools.wraps(_freeze)
def _freeze_and_note() -> None:
    _freeze()
    _note()


def _note() -> None:
    _suspects.update(id(module) for module in sys.modules.copy().values() if module is not None)
