"""What becomes of a push whose author has died: cooperative termination, with presumed abort.

Once a host shows the new files, the push is carried to its end, and before that it is taken back.
The owner that leads decides, for all owners.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from monarch.core.code_switch.table import Vote
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.coordinating import Coordinating, Purpose
from monarch.runtime.workspace.code_switch.owner import Owner
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan
from monarch.wire.address import Uid
from monarch.wire.message import InspectFiles, Sync, TakeBack
from monarch_sync.messages import Abort, Commit, Message, encode

_log = logging.getLogger("monarch.reload")

_ANSWER_SECONDS = 60.0
"""Much longer than it takes to find a host lost. One that is merely slow may show the push, and the
others must not be taken back behind its back."""


class AuthorLost:
    """A push without its author, which is brought to its end for ``owners``, by orders to hosts in
    the ``name`` of a successor.

    ``is_told``: people have been told of its end.
    """

    def __init__(
        self,
        node: Node,
        plan: ReloadPlan,
        owners: Sequence[Owner],
        name: Uid,
        *,
        is_told: bool = False,
    ) -> None:
        self._node = node
        self._plan = plan
        self._owners = owners
        self._name = name
        self._is_told = is_told

    def settle(self) -> None:
        """Finish the push or take it back, and say so. Blocks."""
        number, author = self._plan.generation, self._plan.author
        files = _HostFiles(self._node, self._plan, self._name)
        switch = Coordinating(self._owners, self._plan, files)
        is_done = switch.recover()
        _wait_for(files.dropped)
        if switch.error is not None:
            _log.error("the push of generation %d (%s) could not be ended", number, author)
            raise switch.error
        if self._is_told:
            return
        if is_done:
            _log.warning(
                "the author of generation %d (%s) has died after its files had come: all run it "
                "now", number, author,
            )  # fmt: skip
        elif files.why_not:
            _log.error(
                "the author of generation %d has died; it was taken back: %s", number, files.why_not
            )
        else:
            _log.warning(
                "the push of generation %d ended with its author (%s): nothing has changed",
                number, author,
            )  # fmt: skip


class _HostFiles(Purpose):
    """The files of a push, at the hosts that it was for. Orders are given in ``name``, so that none
    counts any more of those in whose place it comes."""

    def __init__(self, node: Node, plan: ReloadPlan, name: Uid) -> None:
        self._node = node
        self._plan = plan
        self._name = name
        self._is_inspected = False
        self.dropped: list[Promise[Response]] = []
        self.why_not = ""

    def refused(self, outcome: ReloadOutcome) -> None:
        self.why_not = "; ".join(str(refused) for refused in outcome.refused)

    def inspect(self) -> Vote:
        self._is_inspected = True
        plan, me, name = self._plan, self._node.uid, self._name
        answers = [
            self._node.request(
                self._node.address_of(uid),
                lambda port: InspectFiles(plan.generation, port, me, name),
            )
            for uid in plan.hosts
        ]
        bodies = [
            answer.value.body
            for answer in answers
            if answer.wait(_ANSWER_SECONDS) and answer.value.body and not answer.value.error
        ]
        # Where nothing was staged, the files may have been there before, under another number.
        having = [body for body in bodies if body.get("digest") == plan.digest]
        if not any(body.get("generation") == plan.generation for body in having):
            return Vote.NO
        return Vote.YES if having == bodies else Vote.SOME

    def show(self) -> Vote:
        _wait_for(self._ask(Commit(self._plan.generation)))
        vote = self.inspect()
        if vote is not Vote.YES:
            self.why_not = "not all hosts could show its files"
        return vote

    def drop(self) -> Vote:
        # Sent before anybody may push again: what comes then is staged under the same number.
        self.dropped = self._ask(Abort(self._plan.generation))
        if not self._is_inspected:
            return Vote.NO  # An owner was never halted, so no host was told to show it.
        # The author's last message may have come in between, to some of them.
        _wait_for(self.dropped)
        return self.inspect()

    def take_back(self) -> None:
        number, uid, name = self._plan.generation, self._node.uid, self._name
        answers = [
            self._node.request(
                self._node.address_of(host), lambda port: TakeBack(number, port, uid, name)
            )
            for host in self._plan.hosts
        ]
        _wait_for(answers)

    def _ask(self, message: Message) -> list[Promise[Response]]:
        data, sender, name = encode(message), self._node.uid, self._name
        folders = tuple(self._plan.folders)
        hosts: Iterable[Uid] = self._plan.hosts
        return [
            self._node.request(
                self._node.address_of(uid),
                lambda port: Sync(port, sender, folders, instead_of=name),
                data,
            )
            for uid in hosts
        ]


def _wait_for(answers: Iterable[Promise[Response]]) -> None:
    for answer in answers:
        answer.wait(_ANSWER_SECONDS)
