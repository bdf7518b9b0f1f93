"""The author of a push and the owners of procs: it asks all owners to prepare, and then each to
switch.

It asks one party at a time. If one refuses, or is lost, it cancels the push: prepared owners
revert, owners that have switched already are brought back by another push, and hosts restore their
earlier files. See ``table``.
"""

from __future__ import annotations

from typing import NamedTuple

from monarch.core.code_switch.table import PROPOSAL, ProposalState, SwitchEvent, Vote, next_of
from monarch.wire.message import SwitchOrder

NOBODY = -1
"""Used as an owner for hosts on which nothing runs; the author itself changes their files."""


class AskOwner(NamedTuple):
    """Send a request to an owner, given by its index; pass the answer to ``voted``.

    Requests about files go to hosts. ``SHOW_FILES`` goes to the hosts on which nothing runs;
    ``owner`` is ``NOBODY`` then. ``TAKE_BACK_FILES`` goes to these hosts too, or to the hosts of an
    owner that was lost.
    """

    owner: int
    order: SwitchOrder


class BringBack(NamedTuple):
    """Push to this owner the code from before the push.

    It has switched to the new code, but another owner could not.
    """

    owner: int


Request = AskOwner | BringBack


class Proposal:
    """A push to ``num_owners`` owners. Each event returns the next request; None once the push is
    over.
    """

    def __init__(self, num_owners: int) -> None:
        self.state = ProposalState.IDLE
        self._num_owners = num_owners
        #: The requests of this state that are still to be sent.
        self._todo: list[Request] = []
        #: The request that waits for its answer.
        self._open: Request | None = None
        #: Owners, by index, that have prepared or have begun to, and have not switched.
        self._prepared: list[int] = []
        #: Owners that run the new code.
        self._switched: list[int] = []
        #: Owners that are gone.
        self._lost: list[int] = []
        #: Whether hosts on which nothing runs may show the new files.
        self._has_shown = False
        #: Whether a party, or the author, has said no.
        self._is_refused = False
        #: Whether Ctrl-C has come.
        self._is_interrupted = False

    @property
    def is_over(self) -> bool:
        return self.state in (ProposalState.SWITCHED, ProposalState.CALLED_OFF)

    @property
    def switching(self) -> int | None:
        """The owner that was told to switch and has not answered yet; None if there is none.

        It is the only owner that can still be stopped.
        """
        request = self._open
        is_switch = isinstance(request, AskOwner) and request.order is SwitchOrder.SWITCH
        return request.owner if is_switch and request is not None else None

    def begin(self) -> Request | None:
        return self._move(SwitchEvent.BEGIN)

    @property
    def is_last(self) -> bool:
        """Whether the owner that prepares is the last to be asked."""
        return self.state is ProposalState.PREPARING and not self._todo

    def voted(self, vote: Vote) -> Request | None:
        """Handle the vote, or loss, of the party that was asked last; return the next request."""
        request, self._open = self._open, None
        assert request is not None
        if self.state is ProposalState.CALLING_OFF:
            if isinstance(request, BringBack) and vote is Vote.GONE:
                self._todo.append(AskOwner(request.owner, SwitchOrder.TAKE_BACK_FILES))
            return self._next()
        if isinstance(request, AskOwner) and request.owner != NOBODY:
            if vote is Vote.GONE:
                self._lost.append(request.owner)
            elif request.order is SwitchOrder.SWITCH:
                # It is switched, or has gone back by itself.
                self._prepared.remove(request.owner)
                if vote is Vote.YES:
                    self._switched.append(request.owner)
        if vote is Vote.GONE:
            return self._move(SwitchEvent.LOST)
        if vote is not Vote.YES:
            self._is_refused = True
        if self._is_refused and not (self.state is ProposalState.PREPARING and self._todo):
            return self._move(SwitchEvent.NO)  # All say why they cannot prepare.
        if self._is_interrupted and (self._todo or self._prepared):
            return self._move(SwitchEvent.LOST)
        return self._next()

    def unchanged(self) -> Request | None:
        """Handle that all owners have prepared, and none has code to switch; return the next
        request."""
        return self._move(SwitchEvent.UNCHANGED)

    def refused(self) -> Request | None:
        """Handle that the author refuses, though all have voted yes; return the next request."""
        return self._move(SwitchEvent.NO)

    def interrupted(self) -> Request | None:
        """Handle Ctrl-C; return the next request. It is ``None`` also while an owner switches.

        That owner's vote is then still awaited.
        """
        self._is_interrupted = True
        if self.is_over or self.state is ProposalState.CALLING_OFF or self.switching is not None:
            return None
        return self._move(SwitchEvent.LOST)

    def _next(self) -> Request | None:
        if not self._todo:
            return self._move(SwitchEvent.ALL)
        request = self._open = self._todo.pop(0)
        if isinstance(request, AskOwner):
            if request.order is SwitchOrder.PREPARE:
                self._prepared.append(request.owner)  # or has begun to
            self._has_shown |= request.order is SwitchOrder.SHOW_FILES
        return request

    def _move(self, event: SwitchEvent) -> Request | None:
        self.state = next_of(PROPOSAL, self.state, event)
        self._open = None
        owners = range(self._num_owners)
        self._todo = []
        if self.state is ProposalState.PREPARING:
            self._todo += [AskOwner(owner, SwitchOrder.PREPARE) for owner in owners]
        elif self.state is ProposalState.SHOWING:
            self._todo += [AskOwner(NOBODY, SwitchOrder.SHOW_FILES)]
        elif self.state is ProposalState.SWITCHING:
            self._todo += [AskOwner(owner, SwitchOrder.SWITCH) for owner in owners]
        elif self.state is ProposalState.CALLING_OFF:
            living = [owner for owner in self._prepared if owner not in self._lost]
            self._todo += [AskOwner(owner, SwitchOrder.TAKE_BACK_FILES) for owner in self._lost]
            back = SwitchOrder.TAKE_BACK_FILES if self._has_shown else SwitchOrder.DROP_FILES
            self._todo += [AskOwner(NOBODY, back)]
            self._todo += [AskOwner(owner, SwitchOrder.REVERT) for owner in living]
            self._todo += [BringBack(owner) for owner in self._switched]
        return None if self.is_over else self._next()
