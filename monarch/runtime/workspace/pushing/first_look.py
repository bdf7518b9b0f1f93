"""The first scan of a workspace, during which hosts that have nothing already get parts of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from monarch.runtime.answers import Response
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.pushing.hosts_in_push import HostInPush, HostsInPush
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.spreading import Spread
from monarch.wire.address import ProcAddress
from monarch.wire.message import SyncAnswer
from monarch_sync.errors import BadMessage
from monarch_sync.instalments import Instalments
from monarch_sync.messages import decode
from monarch_sync.progress import progress
from monarch_sync.push import PushMessage
from monarch_sync.scanning.scanner import Scan
from monarch_sync.tree.manifest import Manifest


class FirstLook:
    """The first scan in one attempt of a push. During the scan, contents are sent to ``hosts``,
    which nothing was pushed to yet.

    If the push fails afterwards, these hosts drop what they got. ``hosts`` is empty if there are so
    many new hosts that they should pass the contents on to each other after the scan.
    """

    def __init__(
        self, memory: Memory, in_push: HostsInPush, addresses: Sequence[ProcAddress]
    ) -> None:
        self._memory = memory
        self._in_push = in_push
        self._asked: list[tuple[HostInPush, Promise[Response[SyncAnswer]], int]] = []
        views = dict(memory.views)  # a host that is lost meanwhile is taken out of these
        nothing_yet = Manifest()
        self.hosts = [
            host
            for host in in_push.hosts(addresses, nothing_yet)
            if host.push is not None and host.uid in views and views[host.uid].is_empty
        ]
        addresses = [host.address for host in self.hosts]
        if Spread.is_worth_it(sys.maxsize, addresses, in_push.node):
            self.hosts.clear()
        self._views = {host.uid: views[host.uid] for host in self.hosts}

    def scan(self) -> Scan:
        """Scan all files. Contents that are found are sent to the new hosts meanwhile; a host that
        cannot take them is added to the failed hosts.
        """
        scanner, views = self._memory.scanner, self._views
        if not self.hosts:
            return scanner.scan()
        empty = list(views.values())
        number = self._memory.generation + 1
        instalments = Instalments(scanner.contents, empty, number, self._send)
        scan = scanner.scan(instalments.add)
        instalments.end(scan.manifest)
        shown = progress()
        shown.step, shown.num_hosts = "stage", len(self.hosts)
        shown.bytes_to_send = sum(view.bytes_ahead for view in empty)
        for host, answer, num_bytes in self._asked:
            body = self._in_push.body(host.address, answer, num_bytes)
            if body is not None:
                with suppress(BadMessage):  # The stage, which it does not understand, says so.
                    instalments.answered(views[host.uid], decode(body.reply))
        return scan

    def _send(self, out: PushMessage) -> None:
        num_bytes = sum(map(len, out.blobs))
        for host in self.hosts:
            answer = self._in_push.send(host, out.message, out.blobs)
            self._asked.append((host, answer, num_bytes))
