"""A whole push in one process: from folders here to a replica here."""

from __future__ import annotations

import time

from monarch_sync.host_report import HostReport
from monarch_sync.messages import Commit, Staged, decode, encode
from monarch_sync.push import HostView, Push, PushMessage
from monarch_sync.replicas.replica import Replica
from monarch_sync.report import SyncReport
from monarch_sync.scanning.contents import Contents
from monarch_sync.scanning.scanner import Scan, Scanner
from monarch_sync.workspace import Workspace


def sync_local(workspace: Workspace, replica: Replica) -> SyncReport:
    """Push ``workspace`` to ``replica``: scan, stage, commit.

    Raises ``PushRefused`` if the replica refuses the push, and ``ValueError`` for a workspace
    without folders.
    """
    workspace.check()
    started = time.perf_counter()
    scanner = Scanner(workspace)
    report = push_local(workspace, scanner.scan(), scanner.contents, replica)
    report.seconds = time.perf_counter() - started
    return report


def push_local(
    workspace: Workspace,
    scan: Scan,
    contents: Contents,
    replica: Replica,
    *,
    takes_back: bool = False,
) -> SyncReport:
    """Push the result of a scan to ``replica``: stage, commit.

    ``takes_back``: ``scan`` is an earlier state of ``replica``. No content is sent then, because
    the replica's store has it. Raises ``PushRefused`` if the replica refuses the push, and
    ``MovedUnderfoot`` for a file that changed after the scan.
    """
    scan = scan.over(replica.manifest)
    manifest = scan.manifest
    view = HostView()
    view.generation, view.manifest = replica.generation, replica.manifest
    push = Push(workspace, manifest, view, replica.generation + 1, contents)
    step: PushMessage | Staged = push.first(brings_content=not takes_back)
    while isinstance(step, PushMessage):
        # Through bytes and back, as if there were a wire in between.
        reply = replica.handle(decode(encode(step.message)), step.blobs)
        step = push.receive(decode(encode(reply)))
    kept = push.committed(replica.handle(Commit(push.generation)))
    replica.settle()
    host = HostReport(str(replica.root), bytes_sent=push.bytes_sent, kept=kept)
    push.tell(host)
    files = [path.decode("utf-8", "surrogateescape") for path, _ in push.files()]
    return SyncReport(push.generation, manifest.digest.hex(), [host], files, problems=scan.problems)
