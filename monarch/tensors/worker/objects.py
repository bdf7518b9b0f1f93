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

    ``number`` keeps modules apart in the cache of templates: all keys look the same.
    """
    found = list(ObjectKey.held(key).parameters())
    return [one.detach() for one in found], [one.requires_grad for one in found]


def module_backward(key: torch.Tensor, gradients: Any, like: Any) -> Any:
    """Return the gradients of a forward's inputs; ``key`` is what ``module_forward`` returned for
    it.

    ``like`` is for the shape rule only.
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
        given = [
            one.detach().requires_grad_(need) for one, need in zip(tensors, needs, strict=False)
        ]
        args, kwargs = fill(spec, given)
        result = module(*args, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    inputs = [*given, *module.parameters()]

    def backward(gradients: tuple[Any, ...]) -> list[Any]:
        wanted = [one for one, need in zip(inputs, needs, strict=True) if need]
        roots = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
        found = iter(
            torch.autograd.grad(
                [root for root, _ in roots], wanted, [grad for _, grad in roots], allow_unused=True
            )
        )
        filled = [next(found) if need else None for need in needs]
        return [
            torch.zeros_like(one) if need and grad is None else grad
            for one, need, grad in zip(inputs, needs, filled, strict=True)
        ]

    detached = tuple(one.detach() for one in results)
    return (detached if isinstance(result, tuple) else detached[0]), ObjectKey.hold(backward)
