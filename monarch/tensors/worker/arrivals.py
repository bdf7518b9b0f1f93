"""The actor's side of a hand-over, in its own thread, as its call is unpickled."""

from __future__ import annotations

from typing import Any

from monarch.runtime.cells import loans
from monarch.tensors.worker import slots
from monarch.tensors.worker.slots import Poison


def arrive(ticket: int, end: int) -> Any:
    """The local tensor that was handed over. Raises ``RuntimeError`` where that has failed
    before."""

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
    """Arguments of a call whose result goes to the worker of this process, not back to the
    caller."""

    def ended(result: Any, error: BaseException | None) -> Any:
        slots.put(ticket, (result, error))

    loans.note(ended)
    return args
