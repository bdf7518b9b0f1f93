"""Requests to the process that owns some memory, over the job's own connections."""

from __future__ import annotations

import time
from typing import Any

from monarch.rdma.memory.region import RemoteRegion
from monarch.rdma.memory.registry import registry
from monarch.rdma.ways.backend import BackendUnavailable
from monarch.rdma.ways.own_process import exchange
from monarch.rdma.ways.serving import answers
from monarch.runtime import process
from monarch.wire.message import AskMemory

_LOCK_SECONDS = 30.0
_EXCHANGE = "exchange"


def ask_owner(
    region: RemoteRegion, what: str, about: dict[str, Any], deadline: float
) -> dict[str, Any]:
    """Send a request about ``region`` to its owner, and return the answer.

    Raises ``RemoteMemoryError`` if the memory or the owner is gone, ``BackendUnavailable`` if the
    owner cannot do it, and ``TimeoutError``.
    """
    node = process.current().node
    told = {**about, "slot": region.slot, "key": region.key, "sender": node.uid}
    asked = node.ask(region.owner, AskMemory(what, told))
    if not asked.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(
            f"the owner of {region} has not answered in time: its host is busy or cut off. Try "
            "again, or give a longer timeout="
        )
    response = asked.value
    if response.is_down:
        raise region.orphaned(f"its process is gone: {response.error}")
    if response.error:
        if response.error.startswith(_CANNOT):
            raise BackendUnavailable(response.error)
        raise region.error(response.error)
    return response.answer


_CANNOT = ("BackendUnavailable", "VerbsFailed", "KeyError")


def add_by_owner(region: RemoteRegion, offset: int, amount: int, deadline: float) -> int:
    """Have the owner do a ``fetch_add``, so that it is atomic for all ways; return the old
    value."""
    about = {"offset": offset, "amount": amount.to_bytes(8, "little")}
    answer = ask_owner(region, _EXCHANGE, about, deadline)["old"]
    return int.from_bytes(answer, "little")


def swap_by_owner(
    region: RemoteRegion, offset: int, expected: int, new: int, deadline: float
) -> int:
    """Have the owner do a ``compare_and_swap``, so that it is atomic for all ways; return the old
    value."""
    about = {
        "offset": offset,
        "expected": expected.to_bytes(8, "little"),
        "new": new.to_bytes(8, "little"),
    }
    answer = ask_owner(region, _EXCHANGE, about, deadline)["old"]
    return int.from_bytes(answer, "little")


def _on_exchange(about: dict[str, Any]) -> dict[str, Any]:
    found = registry().find_entry(about["slot"], about["key"])

    def change(old: int) -> int | None:
        if "amount" in about:
            return (old + int.from_bytes(about["amount"], "little")) % 2**64
        new = int.from_bytes(about["new"], "little")
        return new if old == int.from_bytes(about["expected"], "little") else None

    old = exchange(found, about["offset"], change, time.monotonic() + _LOCK_SECONDS)
    return {"old": old.to_bytes(8, "little")}


answers[_EXCHANGE] = _on_exchange
