"""An ``autograd.Function`` whose forward and backward run on the workers."""

from __future__ import annotations

from typing import Any

import torch

from monarch.tensors.api.remote import remote


class _Context:
    """What forward leaves for backward, on its way from one to the other."""

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
    result = cls.forward(context, *args)
    results = result if isinstance(result, tuple) else (result,)
    others = {
        name: value
        for name, value in vars(context).items()
        if name not in ("saved_tensors", "needs_input_grad", "non_differentiable")
    }
    marked = [id(one) in context.non_differentiable for one in results]
    return result, context.saved_tensors, others, marked


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


def remote_autograd_function(cls: Any) -> Any:
    """The class as one whose ``apply`` runs on the workers, found out by running it on one shard.

    What forward puts on ``ctx`` is to be tensors, by ``save_for_backward``, or plain values.
    """
    forward, backward = remote(_forward), remote(_backward)

    class Remoted(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            needs = tuple(ctx.needs_input_grad)
            result, saved, others, marked = forward(cls, needs, args)
            results = result if isinstance(result, tuple) else (result,)
            plain = [one for one, is_marked in zip(results, marked, strict=True) if is_marked]
            ctx.mark_non_differentiable(*plain)
            ctx.save_for_backward(*[one for one in saved if isinstance(one, torch.Tensor)])
            ctx.saved_others = [one if not isinstance(one, torch.Tensor) else None for one in saved]
            ctx.others = others
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            saved = tuple(next(tensors) if one is None else one for one in ctx.saved_others)
            return backward(cls, tuple(ctx.needs_input_grad), saved, ctx.others, gradients)

    Remoted.__name__ = Remoted.__qualname__ = f"remote_{cls.__name__}"
    return Remoted
