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
        del value  # A missing gradient is always None.


def _forward(cls: Any, needs_input_grad: tuple[bool, ...], args: tuple[Any, ...]) -> Any:
    context = _Context()
    context.needs_input_grad = needs_input_grad
    # Workers' tensors do not require grad, but forward may ask whether its arguments do.
    arguments = [
        arg.detach().requires_grad_() if need and isinstance(arg, torch.Tensor) else arg
        for arg, need in zip(args, needs_input_grad, strict=True)
    ]
    result = cls.forward(context, *arguments)
    results = result if isinstance(result, tuple) else (result,)
    others = {
        name: _named(value, args)
        for name, value in vars(context).items()
        if name not in ("saved_tensors", "needs_input_grad", "non_differentiable")
    }
    marked = [id(value) in context.non_differentiable for value in results]
    plain = tuple(map(_plain, results))
    saved = tuple(map(_plain, context.saved_tensors))
    return plain if isinstance(result, tuple) else plain[0], saved, others, marked


class _Argument(NamedTuple):
    """A stand-in for an argument that forward kept on ``ctx``.

    ``position`` is where the argument is in the call. Process groups, for example, are not sent
    back to the controller: it has them already.
    """

    position: int


def _named(value: Any, args: tuple[Any, ...]) -> Any:
    if value is None or isinstance(value, (str, int, float, torch.Tensor)):
        return value
    position = next((n for n, arg in enumerate(args) if arg is value), None)
    return value if position is None else _Argument(position)


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
    """Return a class whose ``apply`` runs the autograd function ``cls`` on the workers.

    To learn the shapes of results, one worker runs forward on its shard first. What forward puts on
    ``ctx`` must be tensors (by ``save_for_backward``), process groups from its arguments, or plain
    values. A class that is remote already is returned as it is.
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
            plain = [value for value, is_marked in zip(results, marked, strict=True) if is_marked]
            ctx.mark_non_differentiable(*plain)
            ctx.save_for_backward(*[value for value in saved if isinstance(value, torch.Tensor)])
            ctx.saved_others = [None if isinstance(v, torch.Tensor) else v for v in saved]
            ctx.others = {
                name: args[value.position] if isinstance(value, _Argument) else value
                for name, value in others.items()
            }
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            saved = tuple(next(tensors) if v is None else v for v in ctx.saved_others)
            return backward(cls, tuple(ctx.needs_input_grad), saved, ctx.others, gradients)

    Remoted.__name__ = Remoted.__qualname__ = name or f"Remote_{cls.__name__}"
    return Remoted
