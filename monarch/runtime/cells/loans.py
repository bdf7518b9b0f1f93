"""Calls whose arguments belong to somebody else in this process, who is told when they end.

Distributed tensors are handed to actors so. What unpickles such an argument notes who waits; the
cell takes the notes when it has the arguments, and tells them how the call ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Ended = Callable[[Any, BaseException | None], Any]
"""Told the result or the error of the call; what it returns is answered in place of the result."""


class _Loans(threading.local):
    noted: list[Ended] | None = None


class _Used:
    is_used = False  # By anything in this process: most have none, and shall not pay for it.


_loans = _Loans()
_used = _Used()


def note(ended: Ended) -> None:
    """Be told of the end of the call whose arguments are being unpickled in this thread."""
    _used.is_used = True
    if _loans.noted is None:
        _loans.noted = []
    _loans.noted.append(ended)


def noted() -> list[Ended]:
    """Who is to be told of the call that was just unpickled."""
    if not _used.is_used or not _loans.noted:
        return []
    found, _loans.noted = _loans.noted, None
    return found


def end(loans: list[Ended], result: Any, error: BaseException | None = None) -> Any:
    for ended in loans:
        result = ended(result, error)
    return result


def failed(loans: list[Ended], error: BaseException) -> list[Ended]:
    """The call has raised, or could not be unpickled; who was told. What was lent is given back
    with it, so that such a call cannot be run again."""
    told = loans or noted()
    end(told, None, error)
    return told
