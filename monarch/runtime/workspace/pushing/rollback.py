"""Rollback to an earlier generation: push the state that the hosts have in their stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.runtime.workspace.code_switch.proposing import Owner
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.workspace_push import WorkspacePush
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.errors import ContentGone, PushRefused
from monarch_sync.messages import StateReply
from monarch_sync.report import SyncReport
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.scanner import Scan, Scanner
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.manifest import Manifest
from monarch_sync.workspace import Workspace


class _PastScanner(Scanner):
    """A scanner that returns an earlier state instead of the author's present files."""

    def __init__(self, workspace: Workspace, manifest: Manifest, contents: Contents) -> None:
        super().__init__(workspace)
        self.manifest, self.contents = manifest, contents
        self._scan = Scan(manifest, [])

    def scan(self, follow: Callable[[Entry], None] | None = None) -> Scan:
        return self._scan

    def rescan(self, paths: Iterable[str | Path]) -> Scan:  # type: ignore[override]
        return self._scan


class _Landing(Workspace):
    """A workspace without local files: its folders only say where their files land on hosts."""

    def locate(self, remote: str) -> Iterator[Path]:
        return iter(())


def roll_back(
    past: HostHistory,
    node: Node,
    workspace: Workspace,
    generation: int,
    hosts: Sequence[ProcAddress],
    *,
    owners: Sequence[Owner] | None = None,
    best_effort: bool = False,
    silent: Mapping[Uid, str] | None = None,
    names: Mapping[Uid, str] | None = None,
) -> SyncReport:
    """Have all ``hosts``, and the processes there, go back to a generation; blocks.

    If one of them cannot go back, none does. With ``best_effort``, the ``silent`` hosts (reasons by
    uid) are left behind instead, and reported. ``past`` has the history of the hosts that answer.
    ``owners`` own the procs; None: the clients that the hosts name. ``names`` are for hosts that
    have not told their names.

    The restored state becomes the next generation; the author's files do not change. A host that
    lacks contents gets them from another host. Raises ``GenerationUnknown``, ``ContentGone``, and
    ``MonarchError`` for a lost host.
    """
    wanted = past.state(generation)
    for entry in wanted.manifest:
        if entry.is_file and entry.digest in wanted.missing:
            raise ContentGone(entry.path, len(past.hosts), len(wanted.missing), generation)
    landing = _Landing({folder.local: folder.remote for folder in workspace.folders})
    memory = Memory(landing)
    memory.host_names.update(names or {})
    contents = Contents(landing)  # none of its own: hosts have them, for those that lack them
    contents.elsewhere = past.content
    memory.scanner = _PastScanner(landing, wanted.manifest, contents)
    memory.last = memory.run = _same_state(past.states().values())
    try:
        attempt = WorkspacePush(
            memory, node, owners, "auto", best_effort=best_effort, silent=silent
        )
        return attempt.run(hosts, None)
    except PushRefused as error:
        raise MonarchError(str(error)) from None


def _same_state(states: Iterable[StateReply]) -> Manifest | None:
    """Return the present state of the hosts if they all have the same state; else None. The hosts
    go back to it if a rank cannot switch.
    """
    replies = list(states)
    if not replies or len({reply.digest for reply in replies}) > 1:
        return None
    return Manifest.from_rows(replies[0].rows, replies[0].digest_name)
