"""A process's part in a change of generation, and its part for the processes it owns.

Prepare, switch and revert go down the ownership tree: a process does its own share, and has
every proc that it spawned do the same. A switch travels in the owner's order and waits behind
what the owner sent before (``ProcAgent.fence``), so all ranks switch between the same two
messages. Nobody goes on to the second before all have switched: the owner lifts the fences, or has
everything taken back. Procs that cannot take the code in place are replaced at that moment.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from monarch.config import settings
from monarch.runtime.answers import Outcome
from monarch.runtime.context import running
from monarch.runtime.kept_spawns import KEPT_BYTES
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    AnyMessage,
    Prepare,
    Release,
    ReplaceProcs,
    Revert,
    Switch,
)

__all__ = ["ReloadAgent", "project_roots"]

_log = logging.getLogger("monarch.reload")


class ReloadAgent:
    """Changes the code of this process and of those below, between two messages, or not at all."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self._node = agent.node
        self._label = label
        self.local = LocalReload(agent, roots, label)
        self._targets: dict[int, list[ProcAddress]] = {}
        self._to_replace: dict[int, dict[Uid, ProcAddress]] = {}
        self._node.handle(Prepare, self._on_prepare)
        self._node.handle(Switch, self._on_switch, on_any_thread=True)
        self._node.handle(Release, self._on_release)
        self._node.handle(Revert, self._on_revert)

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Get ``plan`` ready here and in all procs below. Changes nothing visible. Blocks."""
        return self.prepare_on(plan, self._agent.owned_procs() if plan.generation > 0 else [])

    def prepare_on(
        self,
        plan: ReloadPlan,
        procs: Sequence[ProcAddress],
        here: Callable[[ReloadPlan], ReloadOutcome] | None = None,
    ) -> ReloadOutcome:
        """Get ``plan`` ready in these procs, and here, in another way than theirs if given."""
        uid, generation = self._node.uid, plan.generation
        self._targets[generation] = list(procs)
        data = msgspec.msgpack.encode(plan)
        children = self._ask(
            procs, lambda port: Prepare(generation, plan.digest, plan.mode, port, uid), data
        )
        outcome = (here or self.local.prepare)(plan)
        answers = self._gather(outcome, procs, children)
        replaced = {proc.uid: proc for proc, answer in answers if answer.is_replaced}
        self._to_replace[generation] = replaced
        for proc, answer in answers:
            outcome.refused += self._why_not_again(proc) if answer.is_replaced else []
        return outcome

    def _why_not_again(self, proc: ProcAddress) -> list[RefusedFile]:
        """Actors in a proc that could not be made again."""
        return [
            RefusedFile(
                self._label,
                f"a proc needs a new process, but the arguments of {spawn.name} cannot be given "
                f"again: {spawn.num_bytes} bytes, of which {KEPT_BYTES} at most are kept; stop "
                "these actors, or pass large things to an endpoint",
            )
            for spawn in self._agent.kept_spawns.on(proc.uid)
            if spawn.data is None
        ]

    def switch(self, generation: int) -> ReloadOutcome:
        """Run ``generation`` from here on, here and in all procs below. Blocks.

        Returns when every actor has finished the message that it was in, and switched. Where all
        could, they go on; otherwise they wait for ``revert``.
        """
        done: Promise[ReloadOutcome] = Promise()
        actor = running.get()
        with self._node.casting:
            # One cast: nothing that we send comes between the procs' switches.
            procs, children = self._cast_switch(generation)
            exempt = actor.record.uid if actor else ""
            self._fence(self._node.uid, generation, done.set, exempt)
        self._release_early(generation, procs, children)
        done.wait()
        outcome = done.value
        if not outcome.refused:
            self._agent.lift(generation)
        self._gather(outcome, procs, children)
        if not outcome.refused:
            outcome.problems += self._release(generation)
        return outcome

    def _release_early(
        self, generation: int, procs: Sequence[ProcAddress], children: Sequence[Promise[Outcome]]
    ) -> None:
        """Let each mesh go on as soon as all of its ranks have switched.

        Another one may be in a long call; a refusal there still takes everything back.
        """
        meshes: dict[Uid, list[tuple[ProcAddress, Promise[Outcome]]]] = {}
        for proc, child in zip(procs, children, strict=True):
            meshes.setdefault(self._agent.mesh_of(proc.uid), []).append((proc, child))
        replaced = self._to_replace.get(generation, {})
        for members in meshes.values() if len(meshes) > 1 else ():
            if not any(proc.uid in replaced for proc, _ in members):
                self._release_when_all(generation, members)

    def _release_when_all(
        self, generation: int, members: Sequence[tuple[ProcAddress, Promise[Outcome]]]
    ) -> None:
        def look() -> None:
            if not all(child.is_set for _, child in members):
                return
            if not any(c.value.error or c.value.body.get("refused") for _, c in members):
                for proc, _ in members:
                    self._node.send(proc, Release(generation, self._node.uid))

        for _, child in members:
            child.on_set(look)

    def _cast_switch(self, generation: int) -> tuple[list[ProcAddress], list[Promise[Outcome]]]:
        """Under the lock that keeps casts in order."""
        procs = self._procs_of(generation)
        replaced = self._to_replace.get(generation, {})
        children = []
        for proc in procs:
            holds = proc.uid in replaced
            if holds:
                self._agent.kept_spawns.hold(proc.uid)
            children += self._ask([proc], self._make_switch(generation, holds))
        return procs, children

    def _make_switch(self, generation: int, holds: bool) -> Callable[[int], Switch]:
        return lambda port: Switch(generation, port, self._node.uid, holds)

    def _procs_of(self, generation: int) -> list[ProcAddress]:
        """Who switches with us: of an upgrade those that were asked, of a push all that we own."""
        if generation > 0:
            return self._agent.owned_procs()
        return self._targets.get(generation, [])

    def _release(self, generation: int) -> list[str]:
        """All have switched: let them go on, and replace those that could not."""
        procs = self._procs_of(generation)
        self._targets.pop(generation, None)
        replaced = self._to_replace.pop(generation, {})
        with self._node.casting:
            for proc in procs:
                if proc.uid not in replaced:
                    self._node.send(proc, Release(generation, self._node.uid))
        self._agent.lift(generation)
        return self._replace(list(replaced.values())) if replaced else []

    def _replace(self, procs: Sequence[ProcAddress]) -> list[str]:
        """New processes in the places of these; back when they are up. Says what went wrong."""
        node, grace = self._node, settings().stop_timeout_seconds
        hosts: dict[Uid, list[ProcAddress]] = {}
        for proc in procs:
            hosts.setdefault(proc.host_uid, []).append(proc)
        asked = []
        for uid, members in hosts.items():
            host = ProcAddress(uid, members[0].host_urls, members[0].machine)
            uids = tuple(proc.uid for proc in members)
            asked.append(node.request(host, _make_replace(uids, grace, node.uid)))
        for answer in asked:
            answer.wait()
        return [answer.value.error for answer in asked if answer.value.error]

    def revert(self, generation: int) -> None:
        """Go back to what ran before ``generation``, prepared or switched to. Blocks."""
        procs = self._procs_of(generation)
        self._targets.pop(generation, None)
        for uid in self._to_replace.pop(generation, {}):
            self._agent.kept_spawns.release(uid)
        children = self._ask(procs, lambda port: Revert(generation, port, self._node.uid))
        self.local.revert(generation)
        for child in children:
            child.wait()
        self._agent.lift(generation)

    def _ask(
        self, procs: Sequence[ProcAddress], make: Callable[[int], AnyMessage], data: bytes = b""
    ) -> list[Promise[Outcome]]:
        return [self._node.request(proc, make, data) for proc in procs]

    def _gather(
        self,
        outcome: ReloadOutcome,
        procs: Sequence[ProcAddress],
        children: Sequence[Promise[Outcome]],
    ) -> list[tuple[ProcAddress, ReloadOutcome]]:
        """Add what the procs say to ``outcome``; who said what."""
        answers = []
        for proc, child in zip(procs, children, strict=True):
            child.wait()
            answer = child.value
            if answer.error:
                # A proc that dies now has no code to switch; its owner hears of it elsewhere.
                _log.warning("a proc did not answer: %s", answer.error)
            else:
                said = msgspec.convert(answer.body, ReloadOutcome)
                outcome.add(said)
                answers.append((proc, said))
        return answers

    def _fence(
        self, sender: str, generation: int, done: Callable[[ReloadOutcome], None], exempt: str = ""
    ) -> None:
        def switch() -> None:
            self.local.switch(generation, done, exempt)

        self._agent.fence(sender, generation, switch, exempt)

    # From our owner, or, at the root, from whoever pushed.

    def _on_prepare(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Prepare)
        plan = msgspec.msgpack.decode(envelope.payload, type=ReloadPlan)
        self._in_background(order.sender, order.port, lambda: self.prepare(plan))

    def _on_switch(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Switch)
        if order.sender == self._node.uid or (self._agent.is_root and order.generation > 0):
            self._in_background(order.sender, order.port, lambda: self.switch(order.generation))
            return
        # The fence goes up at once, on the receiving thread: that is the switch's place.
        with self._node.casting:
            procs, children = self._cast_switch(order.generation)
        done: Promise[ReloadOutcome] = Promise()
        self._fence(order.sender, order.generation, done.set)

        def finish() -> ReloadOutcome:
            done.wait()
            self._gather(done.value, procs, children)
            return done.value

        self._in_background(order.sender, order.port, finish)

    def _on_release(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Release)

        def release() -> ReloadOutcome:
            for problem in self._release(order.generation):
                _log.error("%s", problem)
            return ReloadOutcome()

        if self._to_replace.get(order.generation):
            self._in_background("", 0, release)
        else:
            release()

    def _on_revert(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Revert)

        def revert() -> ReloadOutcome:
            self.revert(order.generation)
            return ReloadOutcome()

        self._in_background(order.sender, order.port, revert)

    def _in_background(self, sender: str, port: int, work: Callable[[], ReloadOutcome]) -> None:
        """Do what takes time off the I/O thread, and answer with the outcome."""

        def run() -> None:
            try:
                body = msgspec.to_builtins(work())
            except Exception as error:
                _log.exception("a reload step failed")
                self._node.answer(sender, port, error=f"{type(error).__name__}: {error}")
            else:
                self._node.answer(sender, port, body)

        threading.Thread(target=run, name="monarch-reload", daemon=True).start()

    def close(self) -> None:
        self.local.close()


def _make_replace(
    uids: tuple[Uid, ...], grace_seconds: float, sender: Uid
) -> Callable[[int], ReplaceProcs]:
    reason = "its code could not be changed in place"
    return lambda port: ReplaceProcs(uids, reason, grace_seconds, port, sender)


def project_roots(paths: Sequence[str]) -> list[str]:
    """Of import folders, those that hold somebody's project rather than installed packages."""
    installed = tuple({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})
    found = []
    for path in paths:
        real = os.path.realpath(path or ".")
        # The runtime does not reload itself, even from a source tree.
        is_ours = os.path.isdir(f"{real}/monarch_sync") or os.path.isdir(f"{real}/monarch/runtime")
        if os.path.isdir(real) and not real.startswith(installed) and not is_ours:
            found.append(real)
    return found
