"""Calls whose arguments are lent by another part of this process, which is told when they end.

Distributed tensors are passed to actors in this way. The code that unpickles such an argument notes
a callback here; the cell takes the callbacks when it has the arguments, and calls them with the
outcome of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Ended = Callable[[Any, BaseException | None], Any]
"""Gets the result or the error of the call; the call is answered with what it returns."""


class _Loans(threading.local):
    noted: list[Ended] | None = None


class _Used:
    is_used = False  # True once this process has had a loan; most never have, and pay nothing.


_loans = _Loans()
_used = _Used()


def note(ended: Ended) -> None:
    """Have ``ended`` called at the end of the call whose arguments this thread is unpickling."""
    _used.is_used = True
    if _loans.noted is None:
        _loans.noted = []
    _loans.noted.append(ended)


def noted() -> list[Ended]:
    """Return the callbacks that were noted for the call that was just unpickled."""
    if not _used.is_used or not _loans.noted:
        return []
    loans, _loans.noted = _loans.noted, None
    return loans


def end(loans: list[Ended], result: Any, error: BaseException | None = None) -> Any:
    """Call ``loans`` with the outcome of their call; return the result to answer with."""
    for ended in loans:
        result = ended(result, error)
    return result


def failed(loans: list[Ended], error: BaseException) -> list[Ended]:
    """Tell the lenders of a call's arguments that the call raised, or could not be unpickled.

    If ``loans`` is empty, the callbacks that were noted while unpickling are called. Returns the
    callbacks that were called. If there are any, the call cannot be run again.
    """
    loans = loans or noted()
    end(loans, None, error)
    return loans
