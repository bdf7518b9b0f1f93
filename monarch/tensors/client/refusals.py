"""Errors when an operation is issued: which argument is wrong, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monarch.tensors.client.ambient import TensorStream
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.specs import SpecMaker, fill
from monarch.tensors.core.storages import NOTHING, READ_AND_WRITE

_EXPLANATIONS = {
    "LOCAL_TENSOR": (
        "this is a tensor of the controller itself, and operations on a mesh take tensors of the "
        "mesh. For computing locally, use `with monarch.no_mesh.activate():`; to bring values to "
        "the mesh, make them there (torch.tensor([...]), or a monarch.remote function that "
        "loads them)."
    ),
    "WRONG_MESH": (
        "this tensor is on another device mesh ({mesh}) than the operation ({active}). Move it "
        "with `t.to_mesh(mesh)`, or work on its mesh with `with t.mesh.activate():`."
    ),
    "OTHER_PROCS": (
        "this tensor is on another device mesh ({mesh}) than the operation ({active}), of other "
        "procs, which tensors do not pass between: spawn one mesh, and slice it; or fetch the "
        "values (monarch.fetch_shard(t).result()), and have a monarch.remote function take them."
    ),
    "WRONG_STREAM": (
        "this tensor belongs to {stream}, and {active_stream} is active. Use "
        "`with t.stream.activate():`, or lend it: `borrowed, borrow = stream.borrow(t)`."
    ),
    "DROPPED": (
        "this tensor, or one that shares its memory, was dropped, and its memory is free. Make it "
        "again, or drop it later.\n{where}"
    ),
    "BORROWED": (
        "this tensor is borrowed mutably by another stream, and cannot be used until that borrow "
        "is dropped (`borrow.drop()`). It was borrowed at:\n{where}"
    ),
    "MUTATING_BORROW": (
        "this tensor would be mutated, and it is borrowed: it cannot be written to until all "
        "borrows of it are dropped (`borrow.drop()`); or it is itself a borrow without "
        "`mutable=True`. It was borrowed at:\n{where}"
    ),
    "REQUIRES_GRAD": (
        "this tensor requires grad, and autograd does not go through this operation. Use "
        "`with torch.no_grad():`, or `t.detach()`, or write its gradient as an "
        "autograd.Function."
    ),
}


class RefusedArguments(TypeError):
    """An operation got an argument that it cannot take."""


def incorrect(
    name: object,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    problem_of: Callable[[Any], str | None],
) -> RefusedArguments:
    """Return the error that shows the call, with ERROR_0 and so on in place of wrong arguments.

    ``problem_of`` returns what is wrong with a tensor, or ``None``.
    """
    maker = SpecMaker(torch.Tensor, frozenset())
    spec_args, spec_kwargs = maker.arguments(args, kwargs)
    problems: list[str] = []
    shown = []
    for tensor in maker.tensors:
        problem = problem_of(tensor)
        if problem is None:
            shown.append(_ShownArgument(f"tensor{tuple(tensor.shape)}"))
            continue
        if problem not in problems:
            problems.append(problem)
        shown.append(_ShownArgument(f"ERROR_{problems.index(problem)}"))
    parts = [repr(fill(spec, shown)) for spec in spec_args]
    parts += [f"{key}={fill(spec, shown)!r}" for key, spec in spec_kwargs]
    lines = [f"ERROR_{n}: {problem}" for n, problem in enumerate(problems)]
    return RefusedArguments(
        f"Incorrect arguments to monarch operation:\n\n  {name}({', '.join(parts)})\n\n"
        + "\n".join(lines)
    )


class _ShownArgument:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def explanation(code: str, **values: Any) -> str:
    shown = "WRONG_MESH" if code == "OTHER_PROCS" else code  # As Monarch has it.
    return f"{shown}: {_EXPLANATIONS[code].format(**values)}"


def find_problem(
    tensor: Any, mesh: Any, stream: TensorStream, *, writes: bool = False
) -> str | None:
    """Return why a tensor is unusable on ``mesh`` in ``stream``, as text; ``None`` if it is
    usable."""
    if not isinstance(tensor, Tensor):
        return explanation("LOCAL_TENSOR")
    storage = tensor._storage
    if storage.dropped is not None:
        return explanation("DROPPED", where=storage.dropped)
    if mesh is not None and tensor.mesh is not mesh:
        code = "WRONG_MESH" if tensor.mesh.client is mesh.client else "OTHER_PROCS"
        return explanation(code, mesh=tensor.mesh, active=mesh)
    if tensor.stream is not stream:
        return explanation("WRONG_STREAM", stream=tensor.stream, active_stream=stream)
    if storage.access == NOTHING:
        return explanation("BORROWED", where=storage.borrowed_at)
    if writes and storage.access != READ_AND_WRITE:
        return explanation("MUTATING_BORROW", where=storage.borrowed_at)
    return None


def refuse_grad(name: str, tensor: Any) -> None:
    """Raise ``TypeError`` if the tensor requires grad: autograd cannot follow this operation."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise incorrect(name, (tensor,), {}, lambda _: explanation("REQUIRES_GRAD"))


def refuse_unusable(name: str, tensor: Any, mesh: Any, stream: TensorStream) -> None:
    """Raise ``TypeError`` for a tensor that is dropped, lent, or of another mesh or stream."""
    if find_problem(tensor, mesh, stream) is not None:
        raise incorrect(name, (tensor,), {}, lambda t: find_problem(t, mesh, stream))
