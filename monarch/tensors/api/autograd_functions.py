"""An ``autograd.Function`` whose forward and backward run on the workers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from monarch.tensors.api.remote import remote


class _Context:
    """The ``ctx`` of autograd at the workers: forward fills it, and backward reads it."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.non_differentiable: tuple[int, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.non_differentiable = tuple(map(id, tensors))

    def mark_dirty(self, *tensors: Any) -> None:
        raise NotImplementedError("mark_dirty: return a new tensor instead of changing an argument")

    def set_materialize_grads(self, value: bool) -> None:
        del value  # What is not there comes as None, always.


def _forward(cls: Any, needs_input_grad: tuple[bool, ...], args: tuple[Any, ...]) -> Any:
    context = _Context()
    context.needs_input_grad = needs_input_grad
    # Values of workers do not require grad; to what the user has written, these do.
    given = [
        one.detach().requires_grad_() if need and isinstance(one, torch.Tensor) else one
        for one, need in zip(args, needs_input_grad, strict=True)
    ]
    result = cls.forward(context, *given)
    results = result if isinstance(result, tuple) else (result,)
    others = {
        name: _named(value, args)
        for name, value in vars(context).items()
        if name not in ("saved_tensors", "needs_input_grad", "non_differentiable")
    }
    marked = [id(one) in context.non_differentiable for one in results]
    plain = tuple(map(_plain, results))
    saved = tuple(map(_plain, context.saved_tensors))
    return plain if isinstance(result, tuple) else plain[0], saved, others, marked


class _Argument(NamedTuple):
    """An argument of forward that ``ctx`` keeps and that is no plain value, such as a process
    group."""

    place: int


def _named(value: Any, args: tuple[Any, ...]) -> Any:
    if value is None or isinstance(value, (str, int, float, torch.Tensor)):
        return value
    place = next((n for n, one in enumerate(args) if one is value), None)
    return value if place is None else _Argument(place)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def _backward(
    cls: Any,
    needs_input_grad: tuple[bool, ...],
    saved: tuple[Any, ...],
    others: dict[str, Any],
    gradients: tuple[Any, ...],
) -> Any:
    context = _Context()
    context.saved_tensors, context.needs_input_grad = saved, needs_input_grad
    vars(context).update(others)
    return cls.backward(context, *gradients)


def remote_autograd_function(cls: Any, name: str | None = None) -> Any:
    """Return the class with an ``apply`` that runs on the workers; one shard runs first, for
    shapes.

    What forward puts on ``ctx`` must be tensors (by ``save_for_backward``), process groups from its
    arguments, or plain values. A class that is remote already is returned as it is.
    """
    if getattr(cls, "_is_remote", False):
        return cls
    forward, backward = remote(_forward), remote(_backward)

    class Remoted(torch.autograd.Function):  # type: ignore[misc]
        _is_remote = True

        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            needs = tuple(ctx.needs_input_grad)
            result, saved, others, marked = forward(cls, needs, args)
            results = result if isinstance(result, tuple) else (result,)
            plain = [one for one, is_marked in zip(results, marked, strict=True) if is_marked]
            ctx.mark_non_differentiable(*plain)
            ctx.save_for_backward(*[one for one in saved if isinstance(one, torch.Tensor)])
            ctx.saved_others = [one if not isinstance(one, torch.Tensor) else None for one in saved]
            ctx.others = {
                name: args[one.place] if isinstance(one, _Argument) else one
                for name, one in others.items()
            }
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            saved = tuple(next(tensors) if one is None else one for one in ctx.saved_others)
            return backward(cls, tuple(ctx.needs_input_grad), saved, ctx.others, gradients)

    Remoted.__name__ = Remoted.__qualname__ = name or f"Remote_{cls.__name__}"
    return Remoted
