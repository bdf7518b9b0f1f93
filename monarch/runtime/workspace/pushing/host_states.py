"""States of hosts that write files of their own, and how a push protects these files.

A folder that seems to have become empty is not emptied on hosts that have files of it. Files that
the author cannot read stay on hosts as they are, and are copied to hosts that lack them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monarch.runtime.node import Node
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.pushing.hosts_in_push import HostsInPush
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.wire.address import ProcAddress
from monarch_sync.errors import ContentGone
from monarch_sync.messages import AskState, StateReply
from monarch_sync.scanning.emptied import bare_folders, refuse_emptied
from monarch_sync.scanning.scanner import Scan
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.manifest import Manifest


def writing_hosts(memory: Memory, addresses: Sequence[ProcAddress]) -> list[ProcAddress]:
    """Return the hosts that write their folder themselves; the host with the latest generation
    comes first.
    """
    views, sharing = memory.views, memory.sharing
    own_folder = sharing.here()
    writing = [a for a in addresses if a.uid in views and not sharing.writer_for(a.uid, own_folder)]
    return sorted(writing, key=lambda address: views[address.uid].generation, reverse=True)


def host_states(
    memory: Memory, in_push: HostsInPush, addresses: Sequence[ProcAddress]
) -> Iterator[Manifest]:
    """Yield the states of these hosts. If several hosts have the same state, it is yielded once.

    Hosts that have no state, or that do not answer, are left out.
    """
    digests = set()
    for host in writing_hosts(memory, addresses):
        view = memory.views[host.uid]
        if (
            view.manifest is None
            and view.generation
            and memory.digests.get(host.uid) not in digests
        ):
            reply = in_push.ask(host, AskState(0))
            if isinstance(reply, StateReply):
                view.manifest = Manifest.from_rows(reply.rows, reply.digest_name)
        if view.manifest is not None and view.manifest.digest.hex() not in digests:
            digests.add(view.manifest.digest.hex())
            yield view.manifest


def check_emptied(
    scan: Scan,
    memory: Memory,
    in_push: HostsInPush,
    addresses: Sequence[ProcAddress],
    local_replicas: LocalReplicas,
) -> None:
    """Raise ``WorkspaceEmptied`` if a workspace folder seems to have been emptied by mistake.

    That is a folder in which no scan of this process has found a file, while hosts, or the author's
    own replicas, have files of it.
    """
    workspace = memory.workspace
    if len(memory.inhabited) == len(workspace.folders):
        return
    bare = bare_folders(workspace, scan.manifest)
    memory.inhabited.update(folder for folder in workspace.folders if folder not in bare)
    bare = [folder for folder in bare if folder not in memory.inhabited]
    if bare:
        for held in (*host_states(memory, in_push, addresses), *local_replicas.held()):
            refuse_emptied(workspace, bare, held)


def with_unreadable(
    scan: Scan, memory: Memory, in_push: HostsInPush, node: Node, addresses: Sequence[ProcAddress]
) -> Scan:
    """Return the scan with an entry for each unreadable file: the entry that the host with the
    latest generation has.

    So there is one state for all hosts, and a host that lacks such a file gets it from that host.
    If all hosts run the author's own files, each unreadable file keeps the state that was pushed
    last.
    """
    if scan.is_whole:
        return scan
    base = next(host_states(memory, in_push, addresses), memory.last)
    if base is None:
        return scan
    full = scan.over(base)
    past = HostHistory(node, {host.uid: host for host in writing_hosts(memory, addresses)})
    kept = full.manifest.changes(scan.manifest)
    lent = {change.now.digest for change in kept if change.now is not None}

    def elsewhere(entry: Entry) -> bytes | None:
        try:
            return past.content(entry) if entry.digest in lent else None
        except ContentGone:
            return None

    memory.scanner.contents.elsewhere = elsewhere
    return full
