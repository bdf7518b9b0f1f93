"""What hosts have, asked of those that keep files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monarch.runtime.workspace.pushing.fleet import Fleet
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.wire.address import ProcAddress
from monarch_sync.manifest import Manifest
from monarch_sync.messages import AskState, Held

__all__ = ["host_states", "writing_hosts"]


def writing_hosts(memory: Memory, addresses: Sequence[ProcAddress]) -> list[ProcAddress]:
    """Those that write files of their own, the furthest on first."""
    views, sharing = memory.views, memory.sharing
    here = sharing.here()
    writing = [a for a in addresses if a.uid in views and not sharing.writer_for(a.uid, here)]
    return sorted(writing, key=lambda address: views[address.uid].generation, reverse=True)


def host_states(
    memory: Memory, fleet: Fleet, addresses: Sequence[ProcAddress]
) -> Iterator[Manifest]:
    """What they have, each state once, without those that nothing was pushed to, or that do not
    say."""
    told = set()
    for host in writing_hosts(memory, addresses):
        view = memory.views[host.uid]
        if view.manifest is None and view.generation and memory.found.get(host.uid) not in told:
            held = fleet.ask(host, AskState(0))
            if isinstance(held, Held):
                view.manifest = Manifest.from_rows(held.rows, held.digest_name)
        if view.manifest is not None and view.manifest.digest.hex() not in told:
            told.add(view.manifest.digest.hex())
            yield view.manifest
