"""Brings hosts that are added late, or come back, to the state that the rest of their mesh runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from monarch.runtime.answers import collect
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.pushing.author import Author
from monarch.wire.codec import Envelope
from monarch.wire.message import Bring, Inspect

_log = logging.getLogger("monarch.workspace")

_ANSWER_SECONDS = 5.0
_PUSH = "push the workspace (sync_workspace, or monarch sync), then spawn again"


class LateHosts:
    """Answers hosts that cannot start procs, because the procs need another state of the workspace
    than the host has.

    ``authors`` returns the authors in this program: only the author that pushed a state can push it
    again.
    """

    def __init__(self, agent: ProcAgent, authors: Callable[[], Iterable[Author]]) -> None:
        self._agent = agent
        self._node = agent.node
        self._authors = authors
        self._node.handle(Bring, self._on_bring)

    def _on_bring(self, envelope: Envelope[Bring]) -> None:
        order = envelope.message

        def run() -> None:
            try:
                digest, error = self._bring(order)
            except Exception as raised:
                digest, error = "", f"{raised}: {_PUSH}"
            self._node.answer(order, digest, error)

        threading.Thread(target=run, name="monarch-bring", daemon=True).start()

    def _bring(self, order: Bring) -> tuple[str, str]:
        """Bring a host to the wanted state; return (digest, error). The error is "" if that
        succeeded.

        The digest is "", with one exception: if other hosts of the mesh turn out to have this
        host's present state, they need no push, and it is the digest of that state.
        """
        name = order.host.urls[0] if order.host.urls else order.host.uid
        has = f"the host {name} has generation {order.generation} of the workspace"
        if self._all_have(order):
            states = self._agent.workspaces
            hosts = [order.host.uid, *states.having(order.wanted)]
            states.pushed(hosts, order.generation, order.digest)
            return order.digest, ""
        if order.num_running:
            return "", (
                f"{has}, others of the mesh have another, and procs run on it, which must not "
                f"change alone: {_PUSH}"
            )
        for author in self._authors():
            if author.has(order.wanted):
                report = author.bring(order.host)
                if not report.ok:
                    return "", f"{has}, and could not be brought further: {' '.join(report.errors)}"
                self._agent.code_states.brought(order.host.uid, order.wanted)
                _log.info("brought the workspace to %s before procs start there", name)
                return "", ""
        return "", (
            f"{has}, and others of the mesh another, which this program has not pushed and so "
            f"cannot bring: {_PUSH}"
        )

    def _all_have(self, order: Bring) -> bool:
        """Return whether the other hosts have the same state as the host of ``order``.

        If so, another author has pushed that state without this process noticing.
        """
        node = self._node
        others = [u for u in self._agent.workspaces.having(order.wanted) if u != order.host.uid]
        asked = {uid: node.ask(node.address_of(uid), Inspect()) for uid in others}
        responses = collect(asked, _ANSWER_SECONDS).values()
        return bool(order.generation) and all(
            not response.error and response.answer.digest == order.digest for response in responses
        )
