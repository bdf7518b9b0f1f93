"""New processes in the places of procs whose code cannot be changed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch.config import settings
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import ReplaceProcs

__all__ = ["replace_procs"]


def replace_procs(node: Node, procs: Sequence[ProcAddress]) -> list[str]:
    """Have the hosts of ``procs`` end them and make them again; back when the new ones are up.

    Says what went wrong.
    """
    grace = settings().stop_timeout_seconds
    hosts: dict[Uid, list[ProcAddress]] = {}
    for proc in procs:
        hosts.setdefault(proc.host_uid, []).append(proc)
    asked = []
    for uid, members in hosts.items():
        host = ProcAddress(uid, members[0].host_urls, members[0].machine)
        uids = tuple(proc.uid for proc in members)
        asked.append(node.request(host, _order(uids, grace, node.uid)))
    for answer in asked:
        answer.wait()
    return [answer.value.error for answer in asked if answer.value.error]


def _order(
    uids: tuple[Uid, ...], grace_seconds: float, sender: Uid
) -> Callable[[int], ReplaceProcs]:
    reason = "its code could not be changed in place"
    return lambda port: ReplaceProcs(uids, reason, grace_seconds, port, sender)
