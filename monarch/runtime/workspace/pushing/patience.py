"""How long an author waits for a host."""

from __future__ import annotations

from monarch.config import settings
from monarch.runtime.answers import Outcome
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.message import Inspect

__all__ = ["Patience"]

_BYTES_PER_SECOND = 64 * 1024
_FILES_PER_SECOND = 100


class Patience:
    """Waits for answers to a push as long as the host is there and may be at work.

    A host that says nothing is asked whether it is there, which its agent answers whatever its
    disk does; one that does not answer that either hangs. One that is there has the time that
    the slowest of networks and disks would take for what was sent.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def why_given_up(
        self, host: ProcAddress, answer: Promise[Outcome], num_bytes: int, num_files: int
    ) -> str:
        """Wait for ``answer``; empty once it is there, or else why nobody waits any longer."""
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

    def _is_there(self, host: ProcAddress, answer: Promise[Outcome], seconds: float) -> bool:
        sign = self._node.request(host, lambda port: Inspect(port, self._node.uid))
        return sign.wait(seconds) or answer.is_set
