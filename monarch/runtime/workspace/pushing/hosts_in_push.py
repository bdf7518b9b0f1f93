"""The hosts of one push: asks for their states, and has all of them stage at once."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from monarch.errors import MonarchError
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.host_files import HostFiles, HostWait
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.sharing import HERE, why_nested
from monarch.runtime.workspace.pushing.spreading import Spread, is_far
from monarch.runtime.workspace.reload_plan import Switched
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Inspect, ProcDown, Sync, SyncAnswer
from monarch_sync.content.disk import Content
from monarch_sync.errors import BadMessage, PushRefused
from monarch_sync.messages import Abort, Message, Question, decode, encode
from monarch_sync.progress import progress
from monarch_sync.push import HostView, Push, PushMessage
from monarch_sync.tree.large_files import review
from monarch_sync.tree.manifest import Manifest

A = TypeVar("A")


class Stale(MonarchError):
    """A host has a later generation than the proposed one."""


class Busy(MonarchError):
    """Another author is in the middle of a push."""


class HostInPush(NamedTuple):
    """A host in a push.

    ``push`` is None if no files are sent to this host. Then ``writer`` is the host that writes its
    folder, or ``HERE`` if its folder is the author's own.
    """

    address: ProcAddress
    push: Push | None
    writer: Uid = ""

    @property
    def uid(self) -> Uid:
        return self.address.uid

    @property
    def is_staged(self) -> bool:
        return self.push is not None and self.push.staged is not None


class HostsInPush:
    """The author's end of all its conversations with host agents."""

    def __init__(self, memory: Memory, node: Node) -> None:
        self._memory = memory
        self.node = node
        self._wait = HostWait(node)
        self._progress = progress()
        #: The uid of the client. Its host has no replica: procs there run the author's files.
        self._client = node.gate.root
        #: Why hosts could not follow.
        self.failed: dict[Uid, str] = {}
        #: The folder of each host's replica.
        self.roots: dict[Uid, str] = {}
        #: The files that each host saved under other names.
        self.kept: dict[Uid, list[str]] = {}
        #: The files of packages that change on each host, and where their new contents are now.
        self.packages: dict[Uid, list[tuple[str, str]]] = {}
        #: The owner of the procs on each host; None if no procs run there.
        self.clients: dict[Uid, ProcAddress | None] = {}

    def name(self, uid: Uid) -> str:
        """Return the name of a host, for people."""
        return self._memory.host_names.get(uid, uid)

    def meet(self, addresses: Sequence[ProcAddress]) -> None:
        """Ask hosts that we have not pushed to yet for their generation."""
        memory = self._memory
        for host in addresses:
            if host.uid in self.failed:
                memory.views.pop(host.uid, None)
                memory.host_names.setdefault(host.uid, host.urls[0] if host.urls else host.uid)
        met = {*memory.views, *self.failed, self._client}
        new = [a for a in addresses if a.uid not in met]
        asked = [(a, self.node.ask(a, Inspect())) for a in new]
        for address, answer in asked:
            state = self.body(address, answer)
            if state is None:
                continue
            memory.host_names[address.uid] = state.host
            if why := why_nested(memory.workspace, state.workspace, state.replica):
                self._fail(address.uid, why)
                continue
            view = HostView(is_near=not is_far(address), is_empty=state.generation == 0)
            memory.views[address.uid] = view
            view.generation = state.generation
            memory.digests[address.uid] = state.digest
            memory.sharing.met(address.uid, state)
            self.clients[address.uid] = state.client_address
            # Once it is restarted, its state is unknown.
            down = ProcDown(address.uid, "the host agent's process ended")
            report = functools.partial(self.node.peer_down.report, down)
            self.node.failure_detector.watch(address, state.pid, report)
        generations = [view.generation for view in memory.views.values()]
        memory.generation = max([memory.generation, *generations])

    def hosts(self, addresses: Sequence[ProcAddress], manifest: Manifest) -> list[HostInPush]:
        """Return the hosts that take part in the push, without hosts that have failed.

        Each gets a ``Push`` of ``manifest``, unless another host or the author writes its folder.
        """
        memory = self._memory
        generation = memory.generation + 1
        uids = {address.uid for address in addresses}
        own_folder = memory.sharing.here()
        pushes = []
        for address in addresses:
            if address.uid == self._client:
                pushes.append(HostInPush(address, None, HERE))
                continue
            view = memory.views.get(address.uid)
            if address.uid in self.failed:
                continue
            if view is None:
                # All hosts were asked before, but another thread forgets a host that is lost.
                self._fail(address.uid, "it was lost as the push began")
                continue
            writer = memory.sharing.writer_for(address.uid, own_folder)
            if writer != HERE and writer not in uids:
                # The host writes its folder itself, or takes it over from a host that is gone.
                writer = memory.sharing.takes_over(address.uid)
            contents = memory.scanner.contents
            push = Push(memory.workspace, manifest, view, generation, contents)
            pushes.append(HostInPush(address, None if writer else push, writer))
        return pushes

    def ask(self, host: ProcAddress, question: Question) -> Message | None:
        """Ask a host a question and return its answer. If there is no answer, note the host as
        failed and return None.
        """
        body = self.body(host, self.node.ask(host, Sync(), encode(question)))
        try:
            return None if body is None else decode(body.reply)
        except BadMessage as error:
            self._fail(host.uid, str(error))
            return None

    def stage(self, hosts: Sequence[HostInPush], manifest: Manifest) -> None:
        """Have all hosts stage the state, in rounds of messages, each to all hosts at the same
        time.

        Raises ``Stale`` if another author has pushed to a host, ``Busy`` if one is pushing.
        """
        going: list[tuple[HostInPush, PushMessage]] = []
        for host in hosts:
            if host.push is not None and not self._has_it(host.uid, manifest):
                going.append((host, host.push.first()))
        self._progress.num_hosts = len(hosts)
        again: MonarchError | None = None
        while going:
            review(
                entry
                for host, out in going
                if host.push is not None
                for entry in host.push.large_in(out)
            )
            self._show(hosts, brings_content=any(out.blobs for _, out in going))
            asked = self._send_all(going)
            going = []
            for host, out, (spread, number) in asked:
                assert host.push is not None
                num_bytes = sum(map(len, out.blobs))
                answer = spread.answers[number]
                body = self.body(host.address, answer, num_bytes, len(manifest))
                if body is None:
                    # The hosts behind it may not have got the content from it.
                    for other in spread.behind(number):
                        if not spread.answers[other].is_set:
                            spread.send_directly(other)
                    continue
                self.roots[host.uid] = body.root
                self.packages[host.uid] = list(body.packages)
                if body.is_staged:
                    self.clients[host.uid] = body.client_address
                try:
                    step = host.push.receive(decode(body.reply))
                except BadMessage as error:
                    self._fail(host.uid, str(error))
                except PushRefused as error:
                    if error.code == "stale":
                        again = Stale(error.reason)
                    elif error.code == "busy":
                        again = again or Busy(f"{self.name(host.uid)}: {error.reason}")
                    else:
                        if error.code == "shared":
                            self._memory.views.clear()
                        self._fail(host.uid, str(error))
                else:
                    if isinstance(step, PushMessage):
                        going.append((host, step))
        if again is not None:
            raise again

    def hear_all(self, hosts: Sequence[HostInPush], manifest: Manifest) -> None:
        """Ask hosts which client they belong to. These are hosts that had nothing to stage, and so
        have not answered in this push.

        Raises ``Stale`` if such a host has another state than ``manifest``, because another author
        has pushed.
        """
        asked = [
            (host, self.node.ask(host.address, Inspect()))
            for host in hosts
            if host.uid not in self.clients and host.uid not in {self._client, *self.failed}
        ]
        for host, answer in asked:
            state = self.body(host.address, answer)
            if state is None:
                continue
            self.clients[host.uid] = state.client_address
            is_to_have_it = host.push is not None and not host.is_staged
            if is_to_have_it and state.digest != manifest.digest.hex():
                raise Stale(f"{self.name(host.uid)} has been given another state meanwhile")

    def _send_all(
        self, going: Sequence[tuple[HostInPush, PushMessage]]
    ) -> list[tuple[HostInPush, PushMessage, tuple[Spread, int]]]:
        """Send each host its message. If a large message is for many hosts, it is sent once, and
        they pass it on.

        Returns for each host (host, message, (the ``Spread`` that sent it, the host's number in the
        ``Spread``)).
        """
        alike: dict[int, list[tuple[HostInPush, PushMessage]]] = {}
        for host, out in going:
            alike.setdefault(id(out), []).append((host, out))
        asked = []
        for members in alike.values():
            message, blobs = members[0][1]
            data, num_bytes = encode(message), sum(map(len, blobs))
            hosts = [host.address for host, _ in members]
            is_spread = Spread.is_worth_it(num_bytes, hosts, self.node)
            groups = [members] if is_spread else [[m] for m in members]
            for group in groups:
                addresses = [host.address for host, _ in group]
                spread = Spread(self.node, self._order(), data, blobs, addresses)
                spread.send()
                for number, (host, out) in enumerate(group):
                    if host.push is not None:
                        host.push.bytes_sent += len(data)
                    asked.append((host, out, (spread, number)))
        return asked

    def _order(self) -> Sync:
        """Return the message that carries each step of a push to a host. It names the folders of
        the workspace and this process.
        """
        folders = tuple(folder.remote for folder in self._memory.workspace.folders)
        return Sync(folders, os.getpid())

    def _show(self, hosts: Sequence[HostInPush], *, brings_content: bool) -> None:
        """Report how many bytes this push sends, and how many hosts have staged it, to the program
        that follows the push.

        ``brings_content``: the messages of this round have content. The bytes are reported from the
        first such round on.
        """
        pushes = [host.push for host in hosts if host.push is not None]
        self._progress.step = "stage"
        if brings_content or self._progress.bytes_to_send:
            self._progress.bytes_to_send = sum(push.bytes_sent for push in pushes)
        self._progress.num_ready = sum(push.staged is not None for push in pushes)

    def have_shown(
        self, hosts: Sequence[HostInPush], manifest: Manifest, files: HostFiles | Switched
    ) -> None:
        """Record which hosts show the files that they had staged, and which hosts could not show
        them.
        """
        memory, failed = self._memory, files.failed
        for host in hosts:
            uid, reply = host.uid, files.replies.get(host.uid)
            if uid in failed:
                where = host.address.urls[0] if host.address.urls else uid
                memory.host_names.setdefault(uid, where)
                memory.views.pop(uid, None)
                self._fail(uid, failed[uid])
            elif reply is not None and host.push is not None:
                self.kept[uid] = host.push.committed(decode(reply))
            elif uid in files.looked:
                memory.sharing.verified[uid] = manifest.digest.hex()

    def sharing(self, hosts: Sequence[HostInPush], manifest: Manifest) -> list[HostInPush]:
        """Return the hosts that do not write their own folder, and have not yet checked that it has
        this state. Another host or the author writes it.
        """
        verified, digest = self._memory.sharing.verified, manifest.digest.hex()
        return [
            host
            for host in hosts
            if host.writer
            and host.uid not in {self._client, *self.failed}
            and verified.get(host.uid) != digest
        ]

    def look(self, hosts: Sequence[HostInPush], manifest: Manifest, generation: int) -> None:
        """Ask the hosts that do not write their own folder to check that all files have arrived
        there. Another host or the author writes it.
        """
        sharing, looking = self._memory.sharing, self.sharing(hosts, manifest)
        if not looking:
            return
        changes = sharing.changes(manifest, self._memory.last, [host.uid for host in looking])
        digest = manifest.digest.hex()
        asked = [
            (host, sharing.share(self.node, host.address, generation, digest, changes))
            for host in looking
        ]
        for host, answer in asked:
            if self.body(host.address, answer, 0, len(manifest)) is not None:
                sharing.verified[host.uid] = digest

    def abort(self, hosts: Sequence[HostInPush]) -> None:
        """Have every host drop its staged state, as far as it still answers."""
        asked = [
            (host, self.send(host, Abort(host.push.generation)))
            for host in hosts
            if host.push is not None and host.uid not in self.failed
        ]
        for host, answer in asked:
            self._wait.why_given_up(host.address, answer, 0, 0)

    def _fail(self, uid: Uid, why: str) -> None:
        self.failed.setdefault(uid, why)

    def _has_it(self, uid: Uid, manifest: Manifest) -> bool:
        """Return whether a host has this state already, pushed by us or by another author."""
        view = self._memory.views.get(uid)
        if view is None:
            return False
        if view.manifest is None and self._memory.digests.pop(uid, "") == manifest.digest.hex():
            view.manifest = manifest
        return view.manifest == manifest

    def send(
        self, host: HostInPush, message: Message, blobs: Sequence[Content] = ()
    ) -> Promise[Response[SyncAnswer]]:
        """Send a host one message of a push."""
        data = encode(message)
        if host.push is not None:
            host.push.bytes_sent += len(data)
        return self.node.ask(host.address, self._order(), data, blobs)

    def body(
        self,
        host: ProcAddress,
        answer: Promise[Response[A]],
        num_bytes: int = 0,
        num_files: int = 0,
    ) -> A | None:
        """Wait for a host's answer and return it. If there is no answer, or it is an error, note
        the host as failed and return None.

        ``num_bytes`` and ``num_files`` lengthen the time to wait.
        """
        if why := self._wait.why_failed(host, answer, num_bytes, num_files):
            self._memory.host_names.setdefault(host.uid, host.urls[0] if host.urls else host.uid)
            self._memory.views.pop(host.uid, None)
            self._fail(host.uid, why)
            return None
        return answer.value.answer
