"""The workers' side of classes whose methods the controller calls: the objects themselves."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch

from monarch.tensors.worker.definitions import resolve
from monarch.tensors.worker.objects import ObjectKey


class WorkerRemoteClass:
    """The base of a class that a ``ControllerRemoteClass`` names by its path.

    Its methods return nothing.
    """

    # The tensor that the controller has keeps its object.
    _objects: ClassVar[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()

    @classmethod
    def remote_init(cls, ident: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Create the object of number ``ident``; it lives as long as the returned tensor."""
        instance = cls(*args, **kwargs)
        WorkerRemoteClass._objects[ident] = instance
        return ObjectKey.hold(instance)

    @classmethod
    def remote_method(cls, ident: int, method_name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the object ``ident``. Raises ``LookupError`` if this proc does not have
        it."""
        instance = WorkerRemoteClass._objects.get(ident)
        if instance is None:
            raise LookupError(
                f"{cls.__name__} number {ident}, whose {method_name} was to be called, is not in "
                "this proc: its __init__ has failed here (look for an earlier error), or it was "
                "made on a mesh without this proc. Make it on the mesh that calls it"
            )
        getattr(instance, method_name)(*args, **kwargs)


def construct_by_path(path: str, ident: int, args: Any, kwargs: Any) -> torch.Tensor:
    return _class(path).remote_init(ident, *args, **kwargs)


def call_by_path(path: str, ident: int, name: str, args: Any, kwargs: Any) -> None:
    _class(path).remote_method(ident, name, *args, **kwargs)


def _class(path: str) -> type[WorkerRemoteClass]:
    cls: type[WorkerRemoteClass] = resolve(("path", path))
    if not hasattr(cls, "remote_init"):
        raise TypeError(
            f"{path} is not a WorkerRemoteClass: derive it from monarch.remote_class."
            "WorkerRemoteClass, or use an OpaqueObject, which takes any class"
        )
    return cls
