"""Asks host agents for their state: all at once; those that are gone are found at once."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Inspect

NOBODY_THERE = "nobody listens there: its host agent has ended, or its machine"

_SECONDS = 5.0
_SILENT_SECONDS = 0.5  # for a host that gave no answer the last time
_FIRST_SECONDS = 0.1  # all that answer have done so by then, as a rule
_COMING_UP_SECONDS = 15.0
_KNOCK_SECONDS = 0.3
_FAR_KNOCK_SECONDS = 1.5  # by way of a gateway


def ask_hosts(
    node: Node,
    addresses: Mapping[str, ProcAddress],
    *,
    silent: Collection[str] = (),
    may_come_up: bool = False,
) -> dict[str, dict[str, Any]]:
    """The state of each host, as it tells it, by URL; of one that gives none, the ``error``.

    However many are dead, it takes no longer than one: at once where no process listens any more,
    or after 15 s where an agent ``may_come_up``; 5 s where an agent listens, and says nothing,
    but less for one that was ``silent`` the last time.
    """
    began = time.monotonic()
    asked = {
        url: node.request(address, lambda port: Inspect(port, node.uid))
        for url, address in addresses.items()
    }
    _wait(asked.values(), began + _FIRST_SECONDS)
    if may_come_up and not all(answer.is_set for answer in asked.values()):
        _wait(asked.values(), began + _COMING_UP_SECONDS)
    closed = closed_of([url for url, answer in asked.items() if not answer.is_set], node)
    _wait((a for url, a in asked.items() if url in silent), began + _SILENT_SECONDS)
    given_up = closed.union(silent)
    _wait((a for url, a in asked.items() if url not in given_up), began + _SECONDS)
    found: dict[str, dict[str, Any]] = {}
    for url, answer in asked.items():
        if answer.is_set:
            error = answer.value.error
            found[url] = {"error": error} if error else answer.value.body
        else:
            found[url] = {
                "error": NOBODY_THERE
                if url in closed
                else f"no answer within {_SECONDS:.0f} s, though somebody listens there: its host "
                "agent hangs or is stopped"
            }
    return found


def _wait(answers: Iterable[Promise[Response]], deadline: float) -> None:
    for answer in answers:
        answer.wait(max(0.0, deadline - time.monotonic()))


def closed_of(urls: Collection[str], node: Node) -> set[str]:
    """The URLs at which no process listens, as far as that is found within a moment."""
    closed: set[str] = set()
    seconds = _KNOCK_SECONDS if node.gateway is None else _FAR_KNOCK_SECONDS

    def knock(url: str) -> None:
        if _is_closed(url, node):
            closed.add(url)

    # Threads, because names have to be looked up; those that take longer end with the program.
    knocking = [threading.Thread(target=knock, args=(url,), daemon=True) for url in urls]
    for thread in knocking:
        thread.start()
    deadline = time.monotonic() + 2 * seconds
    for thread in knocking:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(closed)


def _is_closed(url: str, node: Node) -> bool:
    address = HostUrl.parse(url).advertise
    try:
        if address.startswith("ipc://"):
            with socket.socket(socket.AF_UNIX) as knocking:
                knocking.settimeout(_KNOCK_SECONDS)
                knocking.connect(address.removeprefix("ipc://"))
        elif node.gateway is not None:
            refused = os.strerror(errno.ECONNREFUSED)
            return node.gateway.knock(address, _FAR_KNOCK_SECONDS) == refused
        else:
            parts = urlsplit(address)
            at = parts.hostname or "", parts.port or 0
            socket.create_connection(at, _KNOCK_SECONDS).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False
