"""The messages of a participant of a code switch to the procs that it owns, and to their hosts."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.config import settings
from monarch.runtime.answers import Response, collect
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import ReplaceProcs

_UP_SECONDS = 120.0


def replace_procs(
    node: Node, procs: Sequence[ProcAddress], codes: tuple[HostCode, ...]
) -> list[str]:
    """Have the hosts of ``procs`` end them and make them again; return when the new procs are up,
    with texts about problems.

    ``codes`` are the states of hosts that run different code. A proc that is not up within two
    minutes goes on starting, and the switch does not wait for it.
    """
    grace = settings().stop_timeout_seconds
    hosts: dict[Uid, list[ProcAddress]] = {}
    for proc in procs:
        hosts.setdefault(proc.host_uid, []).append(proc)
    asked: dict[str, Promise[Response[None]]] = {}
    reason = "its code could not be changed in place"
    for uid, members in hosts.items():
        host = ProcAddress(uid, members[0].host_urls, members[0].machine)
        uids = tuple(proc.uid for proc in members)
        asked[uid] = node.ask(host, ReplaceProcs(uids, reason, grace, codes))
    seconds = grace + _UP_SECONDS
    answers = collect(asked, seconds, "")
    problems = []
    for uid, members in hosts.items():
        where = next(iter(members[0].host_urls), uid)
        if not asked[uid].is_set:
            problems.append(f"new procs on {where} are not up after {seconds:g} s")
        elif error := answers[uid].error:
            problems.append(error)
    return problems
