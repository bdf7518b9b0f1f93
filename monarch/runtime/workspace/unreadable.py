"""What the author cannot read: hosts keep what they have of it, and lend it to others."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.runtime.node import Node
from monarch.runtime.workspace.fleet import Fleet
from monarch.runtime.workspace.memory import Memory
from monarch.runtime.workspace.past import Past
from monarch.wire.address import ProcAddress
from monarch_sync.entry import Entry
from monarch_sync.errors import ContentGone
from monarch_sync.manifest import Manifest
from monarch_sync.messages import AskState, Held
from monarch_sync.scanner import Scan

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
    views, sharing = memory.views, memory.sharing
    here = sharing.here()
    writing = [a for a in addresses if a.uid in views and not sharing.writer_for(a.uid, here)]
    writing.sort(key=lambda address: views[address.uid].generation, reverse=True)
    found = (_state_of(address, memory, fleet) for address in writing)
    base = next((state for state in found if state is not None), memory.last)
    if base is None:
        return scan
    full = scan.over(base)
    past = Past(node, {address.uid: address for address in writing})
    kept = full.manifest.changes(scan.manifest)
    lent = {change.now.digest for change in kept if change.now is not None}

    def elsewhere(entry: Entry) -> bytes | None:
        try:
            return past.content(entry) if entry.digest in lent else None
        except ContentGone:
            return None

    memory.scanner.contents.elsewhere = elsewhere
    return full


def _state_of(host: ProcAddress, memory: Memory, fleet: Fleet) -> Manifest | None:
    """What a host has; None if nothing was pushed to it, or it does not say."""
    view = memory.views[host.uid]
    if view.manifest is None and view.generation:
        held = fleet.ask(host, AskState(0))
        if isinstance(held, Held):
            view.manifest = Manifest.from_rows(held.rows, held.digest_name)
    return view.manifest
