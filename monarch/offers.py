"""Lets a lower layer use something that a higher layer makes, such as tensors and views.

A proc mesh can be activated, or shown in a notebook, by code of layers above the actors. The
package ``monarch`` itself, which is above all layers, knows where that code is. So no layer names a
higher one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_load: list[Callable[[str], Any]] = []


def offer(load: Callable[[str], Any]) -> None:
    """Set the function that imports what a higher layer offers, by name."""
    _load[:] = [load]


def offered(name: str) -> Any:
    """Import and return what a higher layer offers under ``name``."""
    return _load[0](name)
