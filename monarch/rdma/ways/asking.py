"""Requests to the process that owns some memory, over the job's own connections."""

from __future__ import annotations

import time
from typing import Any

from monarch.rdma.memory.region import RemoteRegion
from monarch.rdma.memory.registry import registry
from monarch.rdma.ways.backend import BackendUnavailable, WordChange
from monarch.rdma.ways.own_process import exchange
from monarch.rdma.ways.serving import answers
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.wire.message import AskMemory

_LOCK_SECONDS = 30.0
_EXCHANGE = "exchange"


def response_of(
    region: RemoteRegion, request: AskMemory, deadline: float
) -> Response[dict[str, Any]]:
    """Send a request to the owner of ``region``, and return its response.

    Raises ``RemoteMemoryError`` if the owner is gone, and ``TimeoutError`` at the deadline.
    """
    answer = process.current().node.ask(region.owner, request)
    if not answer.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(
            f"the owner of {region} has not answered in time: its host is busy or cut off. Try "
            "again, or give a longer timeout="
        )
    response = answer.value
    if response.is_down:
        raise region.orphaned(f"its process is gone: {response.error}")
    return response


def ask_owner(
    region: RemoteRegion, what: str, about: dict[str, Any], deadline: float
) -> dict[str, Any]:
    """Send a request about ``region`` to its owner, and return the answer.

    Raises ``RemoteMemoryError`` if the memory or the owner is gone, ``BackendUnavailable`` if the
    owner cannot do what is asked, and ``TimeoutError`` at the deadline.
    """
    sender = process.current().node.uid
    about = {**about, "slot": region.slot, "key": region.key, "sender": sender}
    response = response_of(region, AskMemory(what, about), deadline)
    if response.error:
        if response.error.startswith(_CANNOT):
            raise BackendUnavailable(response.error)
        raise region.error(response.error)
    return response.answer


_CANNOT = ("BackendUnavailable", "VerbsFailed", "KeyError")


def exchange_by_owner(
    region: RemoteRegion, offset: int, change: WordChange, deadline: float
) -> int:
    """Have the owner change a 64-bit word; return the word's old value.

    The owner takes the lock for atomic changes, which all backends take.
    """
    words = {"amount": change.operand}
    if change.expected is not None:
        words = {"expected": change.expected, "new": change.operand}
    about = {name: word.to_bytes(8, "little") for name, word in words.items()}
    answer = ask_owner(region, _EXCHANGE, {"offset": offset, **about}, deadline)
    return int.from_bytes(answer["old"], "little")


def _on_exchange(about: dict[str, Any]) -> dict[str, Any]:
    registration = registry().find_entry(about["slot"], about["key"])
    if "amount" in about:
        change = WordChange(int.from_bytes(about["amount"], "little"))
    else:
        words = about["new"], about["expected"]
        change = WordChange(*(int.from_bytes(word, "little") for word in words))
    deadline = time.monotonic() + _LOCK_SECONDS
    old = exchange(registration, about["offset"], change, deadline)
    return {"old": old.to_bytes(8, "little")}


answers[_EXCHANGE] = _on_exchange
