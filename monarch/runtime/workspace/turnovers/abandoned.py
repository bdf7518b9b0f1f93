"""What becomes of a push whose author has died.

It is decided as in any commit of several parties: once a host shows the new files, the push is
carried to its end, and before that it is taken back. The owner of the processes decides, because
it is the only one left who knows of all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from monarch.runtime.answers import Outcome
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.pushing.owner import Owner
from monarch.runtime.workspace.reload_plan import ReloadPlan
from monarch.wire.address import Uid
from monarch.wire.message import Inspect, Sync, TakeBack
from monarch_sync.messages import Abort, Commit, Message, encode

__all__ = ["Abandoned"]

_log = logging.getLogger("monarch.reload")

_ANSWER_SECONDS = 60.0
"""Much longer than it takes to find a host lost. One that is merely slow may show the push, and the
others must not be taken back behind its back."""


class Abandoned:
    """A push without its author. ``step`` is how far ``owner`` had been asked to go."""

    def __init__(
        self, node: Node, plan: ReloadPlan, step: str, owner: Owner, revert: Callable[[], None]
    ) -> None:
        self._node = node
        self._plan = plan
        self._step = step
        self._owner = owner
        self._revert = revert

    def settle(self) -> None:
        """Finish the push or take it back, and say so. Blocks."""
        plan, owner = self._plan, self._owner
        number = plan.generation
        shown = self._hosts_that_show_it() if self._step in ("halt", "patch") else []
        if not shown:
            # Sent before anybody may push again: what comes then is staged under the same number.
            answers = self._ask_hosts(Abort(number))
            self._revert()
            _wait_for(answers)
            _log.warning(
                "the push of generation %d ended with its author (%s): nothing has changed",
                number, plan.author,
            )  # fmt: skip
            return
        _wait_for(self._ask_hosts(Commit(number)))
        # After a patch that was asked for, each process says again what it has done.
        outcome = owner.patch(number)
        if outcome.refused:
            self._revert()
            self._take_back()
            why = "; ".join(str(refused) for refused in outcome.refused)
            _log.error("the author of generation %d has died; it was taken back: %s", number, why)
            return
        owner.go(number)
        _log.warning(
            "the author of generation %d (%s) has died after its files had come: all run it now",
            number, plan.author,
        )  # fmt: skip

    def _hosts_that_show_it(self) -> list[Uid]:
        answers = [
            (uid, self._node.request(
                self._node.address_of(uid), lambda port: Inspect(port, self._node.uid)
            ))
            for uid in self._plan.hosts
        ]  # fmt: skip
        found = []
        for uid, answer in answers:
            if answer.wait(_ANSWER_SECONDS) and _shows(answer.value.body, self._plan):
                found.append(uid)
        return found

    def _ask_hosts(self, message: Message) -> list[Promise[Outcome]]:
        data, sender = encode(message), self._node.uid
        folders = tuple(self._plan.folders)
        return [
            self._node.request(
                self._node.address_of(uid),
                lambda port: Sync(port, sender, folders), data,
            )
            for uid in self._plan.hosts
        ]  # fmt: skip

    def _take_back(self) -> None:
        number, uid = self._plan.generation, self._node.uid
        answers = [
            self._node.request(
                self._node.address_of(host), lambda port: TakeBack(number, port, uid)
            )
            for host in self._plan.hosts
        ]
        _wait_for(answers)


def _wait_for(answers: Iterable[Promise[Outcome]]) -> None:
    for answer in answers:
        answer.wait(_ANSWER_SECONDS)


def _shows(body: dict[str, Any], plan: ReloadPlan) -> bool:
    return body.get("generation") == plan.generation and body.get("digest") == plan.digest
