"""What layers above make of what a lower one has: tensors, views.

A proc mesh can be activated, and shown in a notebook; what does that lies above the actors. The
package itself, ``monarch``, which is above all layers, knows where: so no lower one names a higher.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_load: list[Callable[[str], Any]] = []


def offer(load: Callable[[str], Any]) -> None:
    """``load`` imports what has a name; not before it is asked for."""
    _load[:] = [load]


def offered(name: str) -> Any:
    """What makes ``name``."""
    return _load[0](name)
