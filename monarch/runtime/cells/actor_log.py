"""Python log records say which actor they come from: ``[actor=<root>.<module.Class name>] ``.

Records are marked when they are made, so that every handler shows it, whenever it was added.
Records without a message are left alone: some libraries carry structured data in them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from monarch.runtime.context import running

_client_name = ""


def _always() -> bool:
    return True


_is_on: Callable[[], bool] = _always


def set_switch(is_on: Callable[[], bool]) -> None:
    """Set the function that says whether log records get their actor's name as a prefix.

    It is called for each record.
    """
    global _is_on
    _is_on = is_on


def name_the_client() -> None:
    """Prefix log records from outside of actors with ``[actor=<root>]`` from now on.

    A program calls this when it asks for its context.
    """
    global _client_name
    _client_name = "<root>"
    start()


@functools.cache
def start() -> None:
    """Prefix the log records of this process with ``[actor=NAME]`` from now on."""
    make = logging.getLogRecordFactory()

    def make_marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        name = _current_name()
        if name and record.msg and _is_on():
            prefix = f"[actor={name}] "
            record.actor_prefix = prefix
            record.msg = (prefix.replace("%", "%%") if record.args else prefix) + str(record.msg)
        return record

    logging.setLogRecordFactory(make_marked)


def _current_name() -> str:
    current = running.get()
    return _client_name if current is None else current.record.title
