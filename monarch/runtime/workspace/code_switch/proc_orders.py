"""The messages of a participant of a code switch to the procs that it owns, and to their hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from monarch.config import settings
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import Order, ReplaceProcs

_UP_SECONDS = 120.0


def as_message(order: Order, sender: Uid) -> Callable[[int], Order]:
    """An order of ``sender``, to be answered at a port; 0 for no answer."""
    return lambda port: msgspec.structs.replace(order, port=port, sender=sender)


def replace_procs(
    node: Node, procs: Sequence[ProcAddress], codes: tuple[HostCode, ...]
) -> list[str]:
    """Have the hosts of ``procs`` end them and make them again; back when the new ones are up.

    ``codes`` are what divided hosts run. Says what went wrong. A proc that is not up in two minutes
    goes on coming up, and the switch does not wait for it.
    """
    grace = settings().stop_timeout_seconds
    hosts: dict[Uid, list[ProcAddress]] = {}
    for proc in procs:
        hosts.setdefault(proc.host_uid, []).append(proc)
    asked: list[tuple[str, Promise[Response]]] = []
    for uid, members in hosts.items():
        host = ProcAddress(uid, members[0].host_urls, members[0].machine)
        uids = tuple(proc.uid for proc in members)
        answer = node.request(host, _order(uids, grace, node.uid, codes))
        asked.append((next(iter(host.urls), uid), answer))
    deadline = time.monotonic() + grace + _UP_SECONDS
    problems = []
    for where, answer in asked:
        if not answer.wait(max(0.0, deadline - time.monotonic())):
            problems.append(f"new procs on {where} are not up after {grace + _UP_SECONDS:g} s")
        elif answer.value.error:
            problems.append(answer.value.error)
    return problems


def _order(
    uids: tuple[Uid, ...], grace_seconds: float, sender: Uid, codes: tuple[HostCode, ...]
) -> Callable[[int], ReplaceProcs]:
    reason = "its code could not be changed in place"
    return lambda port: ReplaceProcs(
        uids=uids, reason=reason, grace_seconds=grace_seconds, port=port, sender=sender, codes=codes
    )
