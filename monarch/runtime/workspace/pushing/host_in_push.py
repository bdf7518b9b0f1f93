"""One host in a push, and the errors that make an author start the push again."""

from __future__ import annotations

from typing import NamedTuple

from monarch.errors import MonarchError
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.push import Push


class Stale(MonarchError):
    """A host has a later generation than the proposed one."""


class Busy(MonarchError):
    """Another author is in the middle of a push."""


class HostInPush(NamedTuple):
    """A host in a push. ``push`` is ``None`` if no files are sent to this host: the host ``writer``
    writes them, or, ``HERE``, they are the author's own files."""

    address: ProcAddress
    push: Push | None
    writer: Uid = ""

    @property
    def uid(self) -> Uid:
        return self.address.uid

    @property
    def is_staged(self) -> bool:
        return self.push is not None and self.push.staged is not None
