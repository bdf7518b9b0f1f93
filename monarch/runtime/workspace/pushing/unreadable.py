"""What the author cannot read: hosts keep what they have of it, and lend it to others."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.runtime.node import Node
from monarch.runtime.workspace.pushing.fleet import Fleet
from monarch.runtime.workspace.pushing.host_states import host_states, writing_hosts
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.past import Past
from monarch.wire.address import ProcAddress
from monarch_sync.entry import Entry
from monarch_sync.errors import ContentGone
from monarch_sync.scanning.scanner import Scan

__all__ = ["with_unreadable"]


def with_unreadable(
    scan: Scan, memory: Memory, fleet: Fleet, node: Node, addresses: Sequence[ProcAddress]
) -> Scan:
    """The scan, with what could not be read as it is on the host that is furthest on. So it is one
    state for all, and a host that lacks something of it gets it from there.

    Where all hosts run the author's own files, it is as it was pushed last.
    """
    if scan.is_whole:
        return scan
    base = next(host_states(memory, fleet, addresses), memory.last)
    if base is None:
        return scan
    full = scan.over(base)
    past = Past(node, {host.uid: host for host in writing_hosts(memory, addresses)})
    kept = full.manifest.changes(scan.manifest)
    lent = {change.now.digest for change in kept if change.now is not None}

    def elsewhere(entry: Entry) -> bytes | None:
        try:
            return past.content(entry) if entry.digest in lent else None
        except ContentGone:
            return None

    memory.scanner.contents.elsewhere = elsewhere
    return full
