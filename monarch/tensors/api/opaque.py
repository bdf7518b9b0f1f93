"""Objects that live on the workers, and are not tensors.

A reference is a tensor of one number, a key into a table of the worker. The object is freed with
its last reference.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from monarch.tensors.api.functions import RemoteFunction
from monarch.tensors.api.remote import Remote, call_on_shard_and_fetch, remote
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.keys import look_into
from monarch.tensors.core.specs import fill, take_apart
from monarch.tensors.worker.objects import (
    ObjectKey,
    call_method,
    construct,
    describe_module,
    module_backward,
    module_forward,
)
from monarch.wire.pickler import dumps


def _one_key(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


_numbers = itertools.count()
_construct = remote(construct, propagate=_one_key)


class OpaqueRef:
    """A reference to an object of the workers. Only remote functions can read its ``value``."""

    def __init__(self, value: Any) -> None:
        self._key: Any = value if isinstance(value, Tensor) else ObjectKey.hold(value)

    @property
    def value(self) -> Any:
        """Return the object; raise ``RuntimeError`` in the controller, which does not have it."""
        return ObjectKey.held(self._key)

    def __repr__(self) -> str:
        return f"OpaqueRef({self._key!r})"

    def __getitem__(self, index: int) -> Any:
        return (self._key,)[index]  # Its only item: programs take results apart by index.


def _items(ref: OpaqueRef) -> list[Any]:
    return [ref._key]


def _of_items(items: Any) -> OpaqueRef:
    ref = object.__new__(OpaqueRef)
    (ref._key,) = items
    return ref


look_into(OpaqueRef, _items, _of_items)


class OpaqueObject(OpaqueRef):
    """A reference to an object whose class only the workers need to import.

    A subclass declares with ``@opaque_method`` what its methods return. ``constructor`` is the path
    of a class, a callable, or a reference to an existing object. A remote function gets an
    ``OpaqueRef``.
    """

    def __init__(self, constructor: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(constructor, OpaqueRef):
            self._key = constructor._key
        else:
            self._key = _construct(RemoteFunction(constructor).where(), args, kwargs)

    def __init_subclass__(cls) -> None:
        look_into(cls, _items, _of_items)

    def call_method(self, method_name: str, propagation: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object on all workers.

        ``propagation`` computes the shapes of the result, from this reference and tensors without
        values.
        """

        def rule(key: Any, name: str, args: Any, kwargs: Any) -> Any:
            return propagation(self, *args, **kwargs)

        call = (self._key, method_name, args, kwargs)
        return Remote(call_method, propagation).dispatch_by(rule, call, {}, self._seen_by_rules())

    def _seen_by_rules(self) -> tuple[Any, ...]:
        """Return a key of this object's attributes, which a shape rule may read.

        The rule runs again when the key differs from that of an earlier call.
        """
        state = {name: value for name, value in vars(self).items() if name != "_key"}
        if not state:
            return (type(self),)
        try:
            return (type(self), dumps(state))
        except Exception:
            return (object(),)  # A key like no other: the rule runs at each call.

    def call_method_on_shard_and_fetch(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on the first worker alone and return a future of its result."""
        return call_on_shard_and_fetch(remote(call_method), self._key, method_name, args, kwargs)


look_into(OpaqueObject, _items, _of_items)


def opaque_method(rule: Callable[..., Any]) -> Any:
    """Declare a method of an ``OpaqueObject`` that runs on the workers under the same name.

    The decorated function is its rule: it computes the shapes of the result.
    """

    @functools.wraps(rule)
    def method(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        return self.call_method(rule.__name__, rule, *args, **kwargs)

    return method


class OpaqueModule:
    """A ``torch.nn.Module`` that lives on the workers alone: the controller need not have its code.

    Calling it returns tensors through which autograd reaches its arguments and parameters.
    """

    def __init__(self, constructor: Any, *args: Any, **kwargs: Any) -> None:
        self._object = OpaqueObject(constructor, *args, **kwargs)
        self._parameters: list[Any] | None = None

    def parameters(self) -> Iterator[Any]:
        """Return the parameters, as distributed tensors that share the module's memory."""
        return iter(self._own_parameters())

    def _own_parameters(self) -> list[Any]:
        if self._parameters is None:
            described = remote(describe_module)(self._object._key, next(_numbers))
            self._parameters = [
                tensor.requires_grad_(needs) for tensor, needs in zip(*described, strict=True)
            ]
        return self._parameters

    def __call__(self, *args: Any, propagator: Callable[..., Any], **kwargs: Any) -> Any:
        """Run forward on the workers.

        ``propagator`` computes the shapes of the result, from the module and tensors without
        values.
        """
        spec, arguments = take_apart((args, kwargs), torch.Tensor)
        tensors = [*arguments, *self._own_parameters()]
        if not any(tensor.requires_grad for tensor in tensors):
            return self.call_method("__call__", propagator, *args, **kwargs)
        return _Forward.apply(self._object, propagator, spec, len(arguments), *tensors)

    def call_method(
        self, method_name: str, propagation: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call another method of the module, without autograd. ``propagation`` computes the
        result's shapes."""
        return self._object.call_method(method_name, propagation, *args, **kwargs)


class _Forward(torch.autograd.Function):  # type: ignore[misc]
    """Runs forward on the workers, which keep the graph, and runs backward through that graph."""

    @staticmethod
    def forward(
        ctx: Any, ref: OpaqueObject, propagator: Any, spec: Any, num_arguments: int, *tensors: Any
    ) -> Any:
        needs = tuple(ctx.needs_input_grad[4:])

        def rule(key: Any, spec: Any, arguments: Any, needs: Any) -> Any:
            args, kwargs = fill(spec, arguments)
            return propagator(ref, *args, **kwargs), torch.empty((), dtype=torch.int64)

        forward = Remote(module_forward, propagator)
        call = (ref._key, spec, tensors[:num_arguments], needs)
        result, ctx.graph = forward.dispatch_by(rule, call, {}, ref._seen_by_rules())
        ctx.like = [
            (tuple(tensor.shape), tensor.dtype) if need else None
            for tensor, need in zip(tensors, needs, strict=True)
        ]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, None, None, *_module_backward(ctx.graph, gradients, ctx.like))


def _gradients_like(key: Any, gradients: Any, like: Any) -> list[Any]:
    return [looks and torch.empty(looks[0], dtype=looks[1]) for looks in like]


_module_backward = remote(module_backward, propagate=_gradients_like)
