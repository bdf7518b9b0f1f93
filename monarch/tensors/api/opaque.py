"""Objects that live on the workers, and are not tensors.

A reference to one is a tensor of one number, a key into a table there; the object goes when its
last reference does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from monarch.tensors.api.functions import RemoteFunction
from monarch.tensors.api.remote import remote
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.keys import look_into
from monarch.tensors.worker.objects import (
    ObjectKey,
    call_method,
    construct,
    describe_module,
    module_backward,
    module_forward,
)


def _one_key(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


class OpaqueRef:
    """An object of the workers. In a remote function it has a ``value``; in the controller not."""

    def __init__(self, value: Any) -> None:
        self._key: Any = value if isinstance(value, Tensor) else ObjectKey.hold(value)

    @property
    def value(self) -> Any:
        """The object; ``RuntimeError`` in the controller, which does not have it."""
        return ObjectKey.held(self._key)

    def __repr__(self) -> str:
        return f"OpaqueRef({self._key!r})"

    def __getitem__(self, place: int) -> Any:
        return (self._key,)[place]  # Its only item, where a result is taken apart.


def _items(ref: OpaqueRef) -> list[Any]:
    return [ref._key]


def _of_items(items: Any) -> OpaqueRef:
    ref = object.__new__(OpaqueRef)
    (ref._key,) = items
    return ref


look_into(OpaqueRef, _items, _of_items)


class OpaqueObject:
    """An object of a class that only the workers need: ``class Foo(OpaqueObject)`` says what
    methods return, with ``@opaque_method``.

    ``constructor`` is the path of a class, or a callable.
    """

    def __init__(self, constructor: Any, *args: Any, **kwargs: Any) -> None:
        where = RemoteFunction(constructor).where()
        self._ref: Any = remote(construct, propagate=_one_key)(where, args, kwargs)

    def call_method(self, name: str, propagate: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object on all workers; ``propagate`` says what comes out."""

        def rule(key: Any, name: str, args: Any, kwargs: Any) -> Any:
            return propagate(*args, **kwargs)

        return remote(call_method, propagate=rule)(self._ref, name, args, kwargs)


def opaque_method(rule: Callable[..., Any]) -> Any:
    """A method of an ``OpaqueObject``: it runs on the workers under the same name, and its body
    here is the rule for what comes out."""

    @functools.wraps(rule)
    def method(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        return self.call_method(rule.__name__, functools.partial(rule, self), *args, **kwargs)

    return method


class OpaqueModule:
    """A ``torch.nn.Module`` that is on the workers alone: its parameters are known here, its code
    need not be.

    Calling it gives tensors that autograd goes through, to its arguments and parameters.
    """

    def __init__(self, constructor: Any, *args: Any, **kwargs: Any) -> None:
        where = RemoteFunction(constructor).where()
        self._ref: Any = remote(construct, propagate=_one_key)(where, args, kwargs)
        self._parameters: list[Any] | None = None

    def parameters(self) -> Iterator[Any]:
        """Its parameters, as tensors of the mesh that share their memory."""
        return iter(self._own_parameters())

    def _own_parameters(self) -> list[Any]:
        if self._parameters is None:
            found = remote(describe_module)(self._ref)
            self._parameters = [
                tensor.requires_grad_(needs) for tensor, needs in zip(*found, strict=True)
            ]
        return self._parameters

    def __call__(self, *args: Any, propagator: Callable[..., Any], **kwargs: Any) -> Any:
        """Its forward; ``propagator`` says what comes out, of tensors without values."""
        if kwargs:
            raise TypeError("an OpaqueModule is called with positional arguments alone")
        return _Forward.apply(self, propagator, len(args), *args, *self._own_parameters())

    def call_method(
        self, name: str, propagator: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Another method of it; autograd does not go through that."""

        def rule(key: Any, name: str, args: Any, kwargs: Any) -> Any:
            return propagator(*args, **kwargs)

        return remote(call_method, propagate=rule)(self._ref, name, args, kwargs)


class _Forward(torch.autograd.Function):  # type: ignore[misc]
    """Runs forward on the workers, where the graph is kept, and backward through that."""

    @staticmethod
    def forward(
        ctx: Any, module: OpaqueModule, propagator: Any, num_args: int, *tensors: Any
    ) -> Any:
        args = tensors[:num_args]
        needs = tuple(ctx.needs_input_grad[3:])

        def rule(key: Any, args: Any, needs: Any) -> Any:
            return propagator(*args), torch.empty((), dtype=torch.int64)

        result, graph = remote(module_forward, propagate=rule)(module._ref, args, needs)
        ctx.graph = graph
        ctx.needs = needs
        ctx.like = [
            (tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in tensors
        ]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        like, needs = ctx.like, ctx.needs

        def rule(key: Any, gradients: Any) -> Any:
            return [
                torch.empty(one[0], dtype=one[1]) if need and one is not None else None
                for one, need in zip(like, needs, strict=True)
            ]

        found = remote(module_backward, propagate=rule)(ctx.graph, gradients)
        return (None, None, None, *found)
