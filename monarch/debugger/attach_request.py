"""What debugpy's adapter sends to a rank, up to the request that attaches an editor to it.

The editor sends one such request for all ranks; where hosts have their copies of the workspace at
different paths, each is to be told its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)

Roots = Sequence[tuple[str, str]]


class AttachRequest:
    """``own`` are the folders of the author, and where this rank has them; ``known`` are those of
    all ranks: what else an editor maps stays."""

    def __init__(self, own: Roots, known: Roots) -> None:
        self._own = [path_mapping(*root) for root in own if root[0] != root[1]]
        self._known = [path_mapping(*root) for root in known]
        self._kept = b""
        self.has_passed = False

    def pass_on(self, data: bytes) -> bytes:
        """Bytes as they come from the adapter; those that are to go to the rank now."""
        if self.has_passed:
            return data
        self._kept += data
        passed = b""
        while (body := self._take()) is not None:
            told = json.loads(body)
            if told.get("type") == "request" and told.get("command") == "attach":
                self.has_passed = True
                told["arguments"] = self._mapped(told.get("arguments") or {})
                rest, self._kept = self._kept, b""
                return passed + _framed(json.dumps(told).encode()) + rest
            passed += _framed(body)
        return passed

    def _take(self) -> bytes | None:
        """The body of the first message, once it is there whole."""
        head, end, rest = self._kept.partition(_HEAD_END)
        found = _LENGTH.search(head)
        if not end or found is None or len(rest) < int(found[1]):
            return None
        body, self._kept = rest[: int(found[1])], rest[int(found[1]) :]
        return body

    def _mapped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        others = [one for one in arguments.get("pathMappings") or () if one not in self._known]
        return {**arguments, "pathMappings": [*others, *self._own]}


def _framed(body: bytes) -> bytes:
    return b"Content-Length: %d%s%s" % (len(body), _HEAD_END, body)


def path_mapping(here: str, there: str) -> dict[str, str]:
    """As editors have it."""
    return {"localRoot": here, "remoteRoot": there}
