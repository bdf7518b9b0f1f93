"""A whole push in one process: from folders here to a replica here."""

from __future__ import annotations

import time

from monarch_sync.host_report import HostReport
from monarch_sync.messages import Commit, Staged, decode, encode
from monarch_sync.push import HostView, Outgoing, Push
from monarch_sync.replicas.replica import Replica
from monarch_sync.report import SyncReport
from monarch_sync.scanning.scanner import Scanner
from monarch_sync.workspace import Workspace

__all__ = ["sync_local"]


def sync_local(workspace: Workspace, replica: Replica) -> SyncReport:
    """Bring ``workspace`` to ``replica``: scan, stage, commit. Raises ``PushRefused``, and
    ``ValueError`` for a workspace without folders."""
    workspace.check()
    started = time.perf_counter()
    scanner = Scanner(workspace)
    scan = scanner.scan().over(replica.manifest)
    view = HostView()
    view.generation, view.manifest = replica.generation, replica.manifest
    push = Push(workspace, scan.manifest, view, replica.generation + 1, scanner.contents)
    step: Outgoing | Staged = push.first()
    while isinstance(step, Outgoing):
        # Through bytes and back, as if there were a wire in between.
        reply = replica.handle(decode(encode(step.message)), step.blobs)
        step = push.receive(decode(encode(reply)))
    kept = push.committed(replica.handle(Commit(push.generation)))
    replica.settle()
    host = HostReport(str(replica.root), bytes_sent=push.bytes_sent, kept=kept)
    push.tell(host)
    files = [path.decode("utf-8", "surrogateescape") for path, _ in push.files()]
    return SyncReport(
        push.generation, scan.manifest.digest.hex(), [host], files,
        time.perf_counter() - started, problems=scan.problems,
    )  # fmt: skip
