"""`monarch.remote_class`: a class at the controller whose methods run on the workers.

Its methods return nothing, as those of profilers, loggers, counters. ``OpaqueObject`` is for
objects that return tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from monarch.tensors.api.remote import remote
from monarch.tensors.client.ambient import Activation, ambient
from monarch.tensors.client.device_mesh import DeviceMesh
from monarch.tensors.worker.remote_classes import call_by_path, construct_by_path

_construct = remote(construct_by_path, propagate=lambda *call: torch.empty((), dtype=torch.int64))
_call = remote(call_by_path, propagate="inspect")


class ControllerRemoteClass:
    """The controller's side of a ``WorkerRemoteClass``, whose path is ``cls_path``.

    A subclass calls ``super().__init__(path, ...)`` while a mesh is active, and declares each
    method of the workers with ``@ControllerRemoteClass.remote_method``. The workers' objects are
    freed with this object.
    """

    _counter = itertools.count()

    def __init__(self, cls_path: str, *args: Any, **kwargs: Any) -> None:
        self.ident = next(ControllerRemoteClass._counter)
        self.cls_path = cls_path
        self.mesh: DeviceMesh | None = ambient.mesh
        self._key = _construct(cls_path, self.ident, args, kwargs)

    @staticmethod
    def remote_method(fn: Callable[..., Any]) -> Callable[..., None]:
        """Declare a method that runs under the same name on the workers, and returns nothing.

        They are those of the active mesh, or else of the object's mesh. The body of the decorated
        function does not run here.
        """

        @functools.wraps(fn)
        def method(self: ControllerRemoteClass, *args: Any, **kwargs: Any) -> None:
            with Activation(mesh=ambient.mesh or self.mesh):
                _call(self.cls_path, self.ident, fn.__name__, args, kwargs)

        return method
