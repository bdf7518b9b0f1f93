"""Asks host agents for their state, all at once, and finds dead ones quickly."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from monarch.runtime.answers import Response, collect, wait_for
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.host_url import HostUrl
from monarch.wire.message import HostState, Inspect, Request

A = TypeVar("A")
NOBODY_THERE = "nobody listens there: its host agent has ended, or its machine"

ASK_SECONDS = 5.0
_SILENT_SECONDS = 0.5  # for a host that gave no answer the last time
_FIRST_SECONDS = 0.1  # all that answer have done so by then, as a rule
COMING_UP_SECONDS = 15.0
_KNOCK_SECONDS = 0.3
_FAR_KNOCK_SECONDS = 1.5  # by way of a gateway


def ask_hosts(
    node: Node,
    addresses: Mapping[str, ProcAddress],
    request: Request[A],
    *,
    silent: Collection[str] = (),
    may_come_up: bool = False,
    seconds: float = ASK_SECONDS,
    coming_up_seconds: float = COMING_UP_SECONDS,
) -> dict[str, Response[A]]:
    """Return the answer of each host, by name; for a host that fails, it has an error.

    All hosts are waited for at the same time. A host without a listening process fails at once, or
    after ``coming_up_seconds`` if its agent ``may_come_up``. Any other host that does not answer
    fails after ``seconds``, or sooner if it was ``silent`` the last time.
    """
    return responses_of(
        node,
        addresses,
        {name: node.ask(address, request) for name, address in addresses.items()},
        silent=silent,
        may_come_up=may_come_up,
        seconds=seconds,
        coming_up_seconds=coming_up_seconds,
    )


def responses_of(
    node: Node,
    addresses: Mapping[str, ProcAddress],
    answers: Mapping[str, Promise[Response[A]]],
    *,
    silent: Collection[str] = (),
    may_come_up: bool = False,
    seconds: float = ASK_SECONDS,
    coming_up_seconds: float = COMING_UP_SECONDS,
) -> dict[str, Response[A]]:
    """Wait for the answers of hosts that were just asked; return them as `ask_hosts` does."""
    began = time.monotonic()

    def wait_until(end_seconds: float, names: Iterable[str]) -> None:
        wait_for([answers[name] for name in names], began + end_seconds - time.monotonic())

    wait_until(_FIRST_SECONDS, answers)
    if may_come_up:
        wait_until(coming_up_seconds, answers)
    urls = {
        name: url
        for name, answer in answers.items()
        if not answer.is_set
        for url in addresses[name].urls[:1]
    }
    closed_urls = closed_of(set(urls.values()), node)
    closed = {name for name, url in urls.items() if url in closed_urls}
    wait_until(_SILENT_SECONDS, (answers.keys() - closed) & set(silent))
    wait_until(seconds, answers.keys() - closed - set(silent))
    late = (
        f"no answer within {seconds:.0f} s: its host agent hangs or is stopped, or its machine is "
        "out of reach"
    )
    nobody: Response[A] = Response(None, NOBODY_THERE)
    return {
        name: nobody if name in closed and not answers[name].is_set else response
        for name, response in collect(answers, 0.0, late).items()
    }


def inspect_hosts(
    node: Node,
    addresses: Mapping[str, ProcAddress],
    *,
    silent: Collection[str] = (),
    may_come_up: bool = False,
    seconds: float = ASK_SECONDS,
    coming_up_seconds: float = COMING_UP_SECONDS,
) -> dict[str, Response[HostState]]:
    """Return the state of each host, by name, as `ask_hosts` does."""
    return ask_hosts(
        node,
        addresses,
        Inspect(),
        silent=silent,
        may_come_up=may_come_up,
        seconds=seconds,
        coming_up_seconds=coming_up_seconds,
    )


def closed_of(urls: Collection[str], node: Node) -> set[str]:
    """Return the URLs at which no process listens, as far as that shows within a moment."""
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
