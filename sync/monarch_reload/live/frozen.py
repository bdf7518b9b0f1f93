"""Objects that `gc.freeze` hides: `gc.get_objects` and `gc.get_referrers` do not return them.

Template processes freeze what they import, and programs freeze their model before they train.
Nothing lists the frozen objects, and only `gc.unfreeze` brings them back, all at once. So that is
done if an edit concerns a module that is frozen, and only then.

Even counting the frozen objects goes through all of them. So `gc.freeze` is replaced by a function
that notes which modules existed at the time.
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
    """From now on, remember which modules ``gc.freeze`` may hide from the garbage collector. If
    something is frozen already, all modules imported so far count as hidden."""
    if gc.freeze is not _freeze_and_note:
        if gc.get_freeze_count():
            _note()
        gc.freeze = _freeze_and_note


def thaw(names: Iterable[str]) -> bool:
    """Make the objects of these modules visible to the garbage collector again; return whether that
    took a call of ``gc.unfreeze``, which thaws all objects."""
    modules = map(sys.modules.get, names)
    suspects = {id(module): module for module in modules if id(module) in _suspects}
    if not suspects:
        return False
    if are_all_seen(suspects.values()):
        _suspects.difference_update(suspects)
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
