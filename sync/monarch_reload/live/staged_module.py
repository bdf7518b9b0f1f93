"""The view of a module that staged code gets."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from monarch_reload.kinds import own_names
from monarch_reload.undo_log import MISSING


class AttributeAccess(Protocol):
    """Reads and sets attributes of modules as they will be after the commit.

    ``assign`` with MISSING deletes an attribute.
    """

    def attribute(self, module: ModuleType, name: str) -> Any: ...

    def assign(self, module: ModuleType, name: str, value: Any) -> None: ...


class StagedModule(ModuleType):
    """A view of a module as it will be after the commit. New code imports it in place of the live
    one."""

    def __init__(self, module: ModuleType, attributes: AttributeAccess) -> None:
        super().__init__(own_names(module)["__name__"])
        namespace = object.__getattribute__(self, "__dict__")
        namespace["__reload_module__"] = module
        namespace["__reload_attributes__"] = attributes

    def __getattribute__(self, name: str) -> Any:
        namespace = object.__getattribute__(self, "__dict__")
        if name in ("__class__", "__reload_module__"):
            return object.__getattribute__(self, name)
        return namespace["__reload_attributes__"].attribute(namespace["__reload_module__"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        namespace = object.__getattribute__(self, "__dict__")
        namespace["__reload_attributes__"].assign(namespace["__reload_module__"], name, value)

    def __delattr__(self, name: str) -> None:
        if not hasattr(self, name):
            raise AttributeError(name)
        self.__setattr__(name, MISSING)
