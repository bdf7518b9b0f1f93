"""The workers' objects to which the controller has references."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from monarch.tensors.core.specs import Spec, fill
from monarch.tensors.worker.definitions import resolve

_table: dict[int, Any] = {}
_keys = itertools.count(1)


class ObjectKey:
    """Tensors of one number, which are keys into this process's table of objects."""

    @staticmethod
    def hold(value: Any) -> torch.Tensor:
        """Keep an object for as long as the returned tensor exists."""
        number = next(_keys)
        _table[number] = value
        key = torch.tensor(number, dtype=torch.int64)
        weakref.finalize(key, _table.pop, number, None).atexit = False
        return key

    @staticmethod
    def held(key: Any) -> Any:
        """Return the object of a key. Raises ``RuntimeError`` if the key is of another process."""
        if type(key) is not torch.Tensor:
            raise RuntimeError(
                "the value of an opaque reference is on the workers: read it in a remote function"
            )
        number = int(key)
        if number not in _table:
            raise RuntimeError(
                f"an opaque reference (key {number}) leads to no object of this process: its last "
                "reference is gone, or it was made in another process, where the object is. Make "
                "the OpaqueRef in a remote function, on a mesh that has this proc, and keep what "
                "that returns for as long as the object is needed"
            )
        return _table[number]


def num_held() -> int:
    """Return how many objects this process keeps for references."""
    return len(_table)


def construct(where: tuple[str, Any], args: Any, kwargs: Any) -> torch.Tensor:
    return ObjectKey.hold(resolve(where)(*args, **kwargs))


def call_method(key: torch.Tensor, name: str, args: Any, kwargs: Any) -> Any:
    return getattr(ObjectKey.held(key), name)(*args, **kwargs)


def describe_module(key: torch.Tensor, number: int) -> tuple[list[torch.Tensor], list[bool]]:
    """Return the parameters of a module, without copies, and which of them require grad.

    ``number`` differs between modules, as their keys do not: without it they would share a
    template.
    """
    parameters = list(ObjectKey.held(key).parameters())
    return [p.detach() for p in parameters], [p.requires_grad for p in parameters]


def module_backward(key: torch.Tensor, gradients: Any, like: Any) -> Any:
    """Run the backward of a forward, and return the gradients of the forward's inputs.

    ``key`` is what ``module_forward`` returned. ``like`` is not used here: the shape rule reads it.
    """
    return ObjectKey.held(key)(gradients)


def module_forward(
    key: torch.Tensor, spec: Spec, tensors: tuple[Any, ...], needs: tuple[bool, ...]
) -> tuple[Any, torch.Tensor]:
    """Run forward with a graph of its own; the second result is the key of its backward.

    ``spec`` rebuilds the arguments from ``tensors``; ``needs`` says which inputs need a gradient.
    """
    module = ObjectKey.held(key)
    with torch.enable_grad():
        arguments = [
            tensor.detach().requires_grad_(need)
            for tensor, need in zip(tensors, needs, strict=False)
        ]
        args, kwargs = fill(spec, arguments)
        result = module(*args, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    inputs = [*arguments, *module.parameters()]

    def backward(gradients: tuple[Any, ...]) -> list[Any]:
        wanted = [tensor for tensor, need in zip(inputs, needs, strict=True) if need]
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
        roots, seeds = [root for root, _ in pairs], [gradient for _, gradient in pairs]
        computed = iter(
            torch.autograd.grad(roots, wanted, seeds, allow_unused=True, materialize_grads=True)
        )
        return [next(computed) if need else None for need in needs]

    detached = tuple(tensor.detach() for tensor in results)
    return (detached if isinstance(result, tuple) else detached[0]), ObjectKey.hold(backward)
