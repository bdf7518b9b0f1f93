"""The files of a push on hosts: has all hosts at once show, drop or restore them."""

from __future__ import annotations

from typing import TypeVar

from monarch.config import settings
from monarch.core.code_switch.table import Vote
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import ReloadPlan, StagedFiles
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Inspect, Request, Share, Sync, SyncAnswer, TakeBack
from monarch_sync.errors import BadMessage
from monarch_sync.messages import Abort, Commit, Committed, Message, decode, encode

A = TypeVar("A")

_BYTES_PER_SECOND = 64 * 1024
_FILES_PER_SECOND = 100


class HostWait:
    """Waits for a host's answer to a push as long as the host is alive and may be working.

    A silent host is asked whether it is alive. Its agent answers this question even if the disk
    hangs; without an answer the host counts as hanging. A live host gets the time that the slowest
    networks and disks would need.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def why_given_up(
        self, host: ProcAddress, answer: Promise[Response[A]], num_bytes: int, num_files: int
    ) -> str:
        """Wait for ``answer``; return "" when it has arrived, else why the push stopped waiting.

        The answer may be an error, which is not looked at here. ``num_bytes`` and ``num_files``
        lengthen the time to wait.
        """
        silence = settings().host_answer_seconds
        if answer.wait(silence):
            return ""
        allowed = num_bytes / _BYTES_PER_SECOND + num_files / _FILES_PER_SECOND
        waited = silence
        while True:
            if not self._is_there(host, answer, silence):
                return (
                    f"it hangs: neither the push nor a question was answered for "
                    f"{waited + silence:g} s. Is its agent stopped, or its machine out of memory?"
                )
            if answer.wait(silence):
                return ""
            waited += silence
            allowed -= silence
            if allowed < 0:
                return (
                    f"its agent is there, but the push has not been answered for {waited:g} s. "
                    "Does its disk hang?"
                )

    def why_failed(
        self, host: ProcAddress, answer: Promise[Response[A]], num_bytes: int, num_files: int
    ) -> str:
        """Wait for ``answer``; return "" if the host has answered without an error.

        Otherwise return why no answer came, or the error in the answer.
        """
        why = self.why_given_up(host, answer, num_bytes, num_files)
        if not why and answer.value.error:
            why = f"it did not answer a push: {answer.value.error}"
        return why

    def _is_there(self, host: ProcAddress, answer: Promise[Response[A]], seconds: float) -> bool:
        sign = self._node.ask(host, Inspect())
        return sign.wait(seconds) or answer.is_set


class FilesHere:
    """Files that the process which drives a switch changes itself. This base class has none."""

    def show(self) -> bool:
        """Show the new files; return whether that succeeded."""
        return True

    def take_back(self) -> None:
        """Restore the files from before the push."""


class HostFiles:
    """The staged files of ``plan`` on the hosts that ``owner`` is responsible for."""

    def __init__(
        self,
        node: Node,
        plan: ReloadPlan,
        owner: Uid,
        *,
        author: Uid = "",
        own_files: FilesHere | None = None,
    ) -> None:
        self._node = node
        self._plan = plan
        staged = plan.staged or StagedFiles(owners={}, places=[], num_files={})
        uids = [uid for uid, sees_to in staged.owners.items() if sees_to == owner]
        self._staged = staged
        #: The hosts that the owner is responsible for, by uid.
        self.hosts = {address.uid: address for address in staged.places if address.uid in uids}
        #: Whose push it is; "" if it is this process's own.
        self._author = author
        #: Files that this process changes itself.
        self._own_files = own_files or FilesHere()
        self._wait = HostWait(node)
        #: The hosts that were told to show the files. The answer may be lost.
        self._committed: set[Uid] = set()
        #: The answers of the hosts that show the files.
        self.replies: dict[Uid, bytes] = {}
        #: Why other hosts could not show or restore their files.
        self.failed: dict[Uid, str] = {}
        #: The hosts that have checked a folder which another host writes.
        self.looked: list[Uid] = []
        self.has_shown = self.is_taken_back = False

    @property
    def behind(self) -> tuple[Uid, ...]:
        """Return the hosts that could not show the files, and are left behind."""
        is_off = self._plan.mode == "off"
        return () if is_off or not self._staged.best_effort else tuple(self.failed)

    def show(self) -> Vote:
        """Have the hosts show the staged files, and show the files here; return the vote.

        The vote is ``NO`` if the files here cannot be shown. It is ``NO`` also if a host fails,
        unless the push may leave hosts behind.
        """
        self.has_shown = True
        number = self._plan.generation
        staged = [host for host in self.hosts.values() if host.uid in self._staged.num_files]
        # Asked is as good as done: the answer may be lost, and the commit not.
        self._committed.update(host.uid for host in staged)
        asked = [(host, self._sync(host, Commit(number))) for host in staged]
        for host, answer in asked:
            body = self._body(host, answer, self._staged.num_files[host.uid])
            if body is None:
                continue
            try:
                reply = decode(body.reply)
            except BadMessage as error:
                self.failed[host.uid] = str(error)
                continue
            if isinstance(reply, Committed):
                self.replies[host.uid] = body.reply
            else:
                self.failed[host.uid] = getattr(reply, "reason", type(reply).__name__)
        self._look()
        if self.failed and not self._staged.best_effort:
            return Vote.NO
        return Vote.YES if self._own_files.show() else Vote.NO

    def _look(self) -> None:
        """Some hosts do not write their folder, because another host or the author writes it. Ask
        them to check that all files have arrived there.
        """
        plan, folders = self._plan, tuple(self._plan.folders)
        sharing = [self.hosts[host] for host in self._staged.sharing if host in self.hosts]
        asked = [
            self._ask(host, Share(plan.generation, plan.digest, folders), self._staged.shared)
            for host in sharing
        ]
        for host, answer in zip(sharing, asked, strict=True):
            if self._body(host, answer, self._staged.num_shared) is not None:
                self.looked.append(host.uid)

    def drop(self, *, waits: bool = True) -> None:
        """Have the hosts drop their staged files; a host that does not answer is ignored.

        With ``waits``, return only when each host has answered or was given up.
        """
        staged = [host for host in self.hosts.values() if host.uid in self._staged.num_files]
        asked = [(host, self._sync(host, Abort(self._plan.generation))) for host in staged]
        for host, answer in asked if waits else ():
            self._wait.why_given_up(host, answer, 0, 0)

    def take_back(self, *, all_of_them: bool = False) -> None:
        """Have hosts restore the files from before the push.

        These are the hosts that were told to show the new files, or with ``all_of_them`` all that
        have staged any. The old contents are in the hosts' stores, so no file content is sent.
        """
        self.is_taken_back = True
        number, author = self._plan.generation, self._author
        hosts = [
            host
            for host in self.hosts.values()
            if host.uid in (self._staged.num_files if all_of_them else self._committed)
        ]
        asked = [(h, self._ask(h, TakeBack(number, author))) for h in hosts]
        for host, answer in asked:
            # One by one: a host that is lost must not keep the others from going back.
            why = self._wait.why_given_up(host, answer, 0, 0)
            if why or answer.value.error:
                why = f"it could not go back: {why or answer.value.error}"
                self.failed.setdefault(host.uid, why)
        self._committed.clear()
        self._own_files.take_back()

    def _sync(self, host: ProcAddress, message: Message) -> Promise[Response[SyncAnswer]]:
        order = Sync(tuple(self._plan.folders), author=self._author)
        return self._ask(host, order, encode(message))

    def _ask(
        self, host: ProcAddress, request: Request[A], data: bytes = b""
    ) -> Promise[Response[A]]:
        if not self._node.address_of(host.uid).urls:
            self._node.address_book.introduce(host)
        return self._node.ask(host, request, data)

    def _body(self, host: ProcAddress, answer: Promise[Response[A]], num_files: int) -> A | None:
        """Wait for the answer of a host and return it. If the answer is an error, or does not come,
        note the host in ``failed`` and return None.
        """
        if why := self._wait.why_failed(host, answer, 0, num_files):
            self.failed[host.uid] = why
            return None
        return answer.value.answer
