"""What staged code sees of a module."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class StagedModule(ModuleType):
    """A module as it will be after the commit."""

    def __init__(self, module: ModuleType, attribute: Callable[[ModuleType, str], Any]) -> None:
        super().__init__(module.__name__)
        object.__setattr__(self, "__reload_module__", module)
        object.__setattr__(self, "__reload_attribute__", attribute)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__reload_module__", "__reload_attribute__"):
            return object.__getattribute__(self, name)
        attribute = object.__getattribute__(self, "__reload_attribute__")
        return attribute(object.__getattribute__(self, "__reload_module__"), name)
