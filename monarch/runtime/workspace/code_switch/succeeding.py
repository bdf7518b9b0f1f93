"""How owners bring a push to one end whose author has died: one of them leads, the others ask it.

``core.code_switch.succession`` says which one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.succession import Succession
from monarch.core.code_switch.table import successor_of
from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.runtime.workspace.code_switch.author_lost import AuthorLost
from monarch.runtime.workspace.code_switch.open_order import OpenOrder
from monarch.runtime.workspace.code_switch.owner import Owner
from monarch.runtime.workspace.code_switch.remote_owner import RemoteOwner
from monarch.runtime.workspace.reload_plan import ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import ProcDown, Settle

_log = logging.getLogger("monarch.reload")
_ASK_SECONDS = 120.0
"""Longer than the one that leads waits for hosts. Then each ends it for itself."""
_MAX_ASKED = 3
"""How often one that leads is asked which has not brought us to an end."""


class _Request(NamedTuple):
    """To end the push of ``author``. An order is answered when it has ended."""

    plan: ReloadPlan
    author: Uid
    order: OpenOrder | None


class Succeeding:
    """The part of one owner in that.

    ``plan`` gives the push that it is in, ``own`` its own part of it, where orders come in the name
    that this is called with.
    """

    def __init__(
        self,
        node: Node,
        machine: Participant,
        *,
        plan: Callable[[], ReloadPlan | None],
        own: Callable[[Uid], Owner],
    ) -> None:
        self._node = node
        self._machine = machine
        self._plan = plan
        self._own = own
        self._lock = threading.Lock()
        self._requests: list[_Request] = []
        self._is_busy = False
        self._settled = ""

    def take_over(self, author: Uid) -> None:
        """Our author has died. Does not block."""
        plan = self._plan()
        assert plan is not None
        self._requests.append(_Request(plan, author, None))

    def asked(
        self, plan: ReloadPlan, author: Uid, order: OpenOrder, *, owner: ProcAddress, pid: int
    ) -> None:
        """Another owner, which is the process ``pid``, asks us to lead. Does not block."""
        self._watch(owner, pid)
        self._requests.append(_Request(plan, author, order))
        self.look()

    def look(self) -> None:
        """Begin, if somebody asks for it, and if the author is gone for us as well, or has brought
        us to an end."""
        with self._lock:
            if self._is_busy or not self._due():
                return
            self._is_busy = True
        threading.Thread(target=self._run, name="monarch-abandoned", daemon=True).start()

    def _due(self) -> list[_Request]:
        return [one for one in self._requests if not self._machine.is_led_by(one.author)]

    def _run(self) -> None:
        try:
            while due := self._due():
                try:
                    self._settle(due[0].plan, due[0].author)
                finally:
                    # With those that have come meanwhile. An owner that the author's last message
                    # has reached since then asks again.
                    for request in self._due():
                        self._requests.remove(request)
                        if request.order is not None:
                            request.order.end()
        finally:
            with self._lock:
                self._is_busy = False
        self.look()

    def _settle(self, plan: ReloadPlan, author: Uid) -> None:
        """Have the first owner that lives end it; that may be us."""
        owners = {owner.uid: owner for owner in plan.owners}
        node = self._node
        unmet = [one for one in (*plan.owners, *plan.places) if not node.address_of(one.uid).urls]
        for address in unmet:
            node.address_book.introduce(address)
        succession = Succession([*owners], node.uid)
        while (first := succession.first()) != node.uid:
            for _ in range(_MAX_ASKED):
                if not self._ask(owners[first], plan, author):
                    break
                if self._machine.is_idle:
                    return
            succession.lost(first)
        name = successor_of(author, succession.term)
        leading: list[Owner] = [self._own(name)]
        leading += [RemoteOwner(node, owners[uid], instead_of=name) for uid in succession.others()]
        # Asked again by an owner that the author's last message has reached since.
        is_again, self._settled = plan.attempt == self._settled, plan.attempt
        AuthorLost(node, plan, leading, name, is_told=is_again).settle()
        for host in plan.places:
            if host in unmet:
                node.peer_down.left(host.uid)

    def _watch(self, owner: ProcAddress, pid: int) -> None:
        """Wait for another owner no longer when it ends. Between machines heartbeats tell."""
        if owner.machine == self._node.address.machine:
            down = ProcDown(owner.uid, "the client has ended")
            self._node.failure_detector.watch(owner, pid, lambda: self._node.report_down(down))

    def _ask(self, owner: ProcAddress, plan: ReloadPlan, author: Uid) -> bool:
        """Whether this one has ended it."""
        _log.warning(
            "the author of generation %d (%s) has died: another client, %s, ends its push for all",
            plan.generation, plan.author, owner.uid,
        )  # fmt: skip
        detector, uid = self._node.failure_detector, self._node.uid
        # It may die while we wait for it, and no other process would tell us.
        detector.expect(owner.uid)
        try:
            answer = self._node.request(
                owner, lambda port: Settle(author, port, uid, os.getpid()), plan.encode()
            )
            if not answer.wait(_ASK_SECONDS):
                _log.warning("the client %s has not ended it in %g s", owner.uid, _ASK_SECONDS)
                return False
            self._watch(owner, answer.value.body.get("pid", 0))
            return not answer.value.error
        except MonarchError:
            return False
        finally:
            detector.unexpect(owner.uid)
