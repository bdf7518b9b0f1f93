"""The actor's side of a hand-over; it runs in the actor's thread, when its call is unpickled."""

from __future__ import annotations

from typing import Any

from monarch.runtime.cells import loans
from monarch.tensors.worker import slots
from monarch.tensors.worker.slots import Poison


def arrive(ticket: int, end: int) -> Any:
    """Return the local tensor that was handed over.

    ``end`` is the ticket to fill when the call ends, or 0. Raises ``RuntimeError`` if the tensor is
    of a failed operation.
    """

    def ended(result: Any, error: BaseException | None) -> Any:
        slots.put(end, None)
        return result

    if end:
        loans.note(ended)
    value = slots.take(ticket)
    if type(value) is Poison:
        raise RuntimeError(
            "a distributed tensor among the arguments is of an operation that failed; "
            "monarch.inspect(tensor) raises why"
        )
    return value


def divert(args: tuple[Any, ...], ticket: int) -> tuple[Any, ...]:
    """Return the arguments of a call, and have its result go to the worker of this proc."""

    def ended(result: Any, error: BaseException | None) -> Any:
        slots.put(ticket, (result, error))

    loans.note(ended)
    return args
