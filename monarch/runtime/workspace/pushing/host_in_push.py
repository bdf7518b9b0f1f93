"""One host in a push, and what sends an author back to the start of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from monarch.config import settings
from monarch.errors import MonarchError
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Inspect
from monarch_sync.push import Push

_BYTES_PER_SECOND = 64 * 1024
_FILES_PER_SECOND = 100


class Stale(MonarchError):
    """A host has a later generation than the one that was proposed."""


class Busy(MonarchError):
    """Another author is in the middle of a push."""


class HostInPush(NamedTuple):
    """A host in a push. ``push`` is ``None`` where the files are not sent to this host: the host
    ``writer`` writes them, or, ``HERE``, they are the author's own files.
    """

    address: ProcAddress
    push: Push | None
    writer: Uid = ""

    @property
    def uid(self) -> Uid:
        return self.address.uid

    @property
    def is_staged(self) -> bool:
        return self.push is not None and self.push.staged is not None


def client_of(body: Mapping[str, Any]) -> ProcAddress | None:
    """The client that has procs on a host, by what it says of itself."""
    address = body.get("client_address")
    return None if address is None else msgspec.convert(address, ProcAddress)


class HostWait:
    """Waits for answers to a push as long as the host is there and may be at work.

    A host that says nothing is asked whether it is there, which its agent answers even if
    its disk hangs; one that does not answer that either hangs. One that is there has the time that
    the slowest of networks and disks would take for what was sent.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def why_given_up(
        self, host: ProcAddress, answer: Promise[Response], num_bytes: int, num_files: int
    ) -> str:
        """Wait for ``answer``; empty once it is there, or else why the push waits no longer."""
        silence = settings().host_answer_seconds
        if answer.wait(silence):
            return ""
        left = num_bytes / _BYTES_PER_SECOND + num_files / _FILES_PER_SECOND
        waited = silence
        while True:
            if not self._is_there(host, answer, silence):
                return (
                    f"it hangs: neither the push nor a question was answered for "
                    f"{waited + silence:g} s. Is its agent stopped, or its machine out of memory?"
                )
            if answer.wait(silence):
                return ""
            waited += silence
            left -= silence
            if left < 0:
                return (
                    f"its agent is there, but the push has not been answered for {waited:g} s. "
                    "Does its disk hang?"
                )

    def _is_there(self, host: ProcAddress, answer: Promise[Response], seconds: float) -> bool:
        sign = self._node.request(host, lambda port: Inspect(port, self._node.uid))
        return sign.wait(seconds) or answer.is_set
