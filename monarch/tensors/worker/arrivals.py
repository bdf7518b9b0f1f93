"""How an actor gets the local tensor of a distributed tensor: its thread unpickles the call."""

from __future__ import annotations

from typing import Any

from monarch.runtime.cells import loans
from monarch.tensors.worker import slots
from monarch.tensors.worker.slots import Poison


def arrive(ticket: int, end: int) -> Any:
    """Return the local tensor that the worker of this proc puts into slot ``ticket``.

    ``end`` is the slot to fill when the actor's call ends; 0 means none. Raises ``RuntimeError`` if
    the operation that makes the tensor has failed.
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
    """Return the arguments of an actor call.

    When the call ends, its result or error goes to slot ``ticket``, where the worker of this proc
    takes it.
    """

    def ended(result: Any, error: BaseException | None) -> Any:
        slots.put(ticket, (result, error))

    loans.note(ended)
    return args
