"""Tensors that another stream borrows, or takes over."""

from __future__ import annotations

import warnings

from monarch.tensors.client.ambient import TensorStream
from monarch.tensors.client.issuing import builtin
from monarch.tensors.client.refusals import find_problem, incorrect
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.client.tracebacks import here
from monarch.tensors.core.templates import FRESH, Result


class Borrow:
    """A loan of a tensor to another stream.

    It ends with ``drop()``, or at the end of a ``with`` block. After that, the tensor's own stream
    waits until the other stream has finished its operations on the tensor.
    """

    def __init__(self, tensor: Tensor, origin: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self._origin = origin
        #: Where the program made the borrow.
        self.traceback_string = here()

    def drop(self) -> None:
        """Give the tensor back. It may be called more than once."""
        tensor, self.tensor = self.tensor, None
        if tensor is None:
            return
        mesh = tensor.mesh
        recorder = mesh.client.recording
        if recorder is not None and not recorder.made_here(tensor):
            self.tensor = tensor
            raise RuntimeError(
                "a borrow that was made outside of a recording cannot be dropped inside of it: "
                "drop it before or after"
            )
        ticket = mesh.client.next_ticket()
        builtin(mesh, tensor.stream, ("signal",), scalars=[ticket])
        tensor.drop()
        tensor._storage.give_back()
        builtin(mesh, self._origin.stream, ("wait",), scalars=[ticket])

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.drop()

    def __del__(self) -> None:
        if self.__dict__.get("tensor") is not None:
            warnings.warn(
                "a borrow was not dropped, and is now: call borrow.drop(), or use it as "
                f"`with borrow:`. It was made at:\n{self.traceback_string}",
                ResourceWarning,
                stacklevel=2,
            )
            self.drop()


def lend(tensor: Tensor, stream: TensorStream, mutable: bool) -> tuple[Tensor, Borrow]:
    """Lend a tensor to ``stream``; return the borrowed tensor, and the ``Borrow`` that ends the
    loan.

    See ``TensorStream.borrow``.
    """
    problem = find_problem(tensor, tensor.mesh, tensor.stream)
    if problem is not None and problem.startswith("DROPPED"):
        raise incorrect("borrow", (tensor,), {}, lambda _: problem)
    storage = tensor._storage.lend(here(), mutable=mutable)
    borrowed = move(tensor, stream)
    borrowed._storage = storage
    return borrowed, Borrow(borrowed, tensor)


def move(tensor: Tensor, stream: TensorStream) -> Tensor:
    """Return a handle of ``stream`` for the same local tensors.

    Both handles share memory: the caller must drop ``tensor``, or lend it.
    """
    mesh = tensor.mesh
    ticket = mesh.client.next_ticket()
    builtin(mesh, tensor.stream, ("hand",), [tensor], scalars=[ticket])
    result = Result(FRESH, tensor._meta)
    taken: Tensor = builtin(mesh, stream, ("take",), scalars=[ticket], results=[result])
    return taken
