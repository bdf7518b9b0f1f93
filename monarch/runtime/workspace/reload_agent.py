"""A process's part in a change of generation, and its part for the processes it owns.

Prepare, switch and revert go down the ownership tree: a process does its own share, and has
every proc that it spawned do the same. A switch travels in the owner's order and waits behind
what the owner sent before (``ProcAgent.fence``), so all ranks switch between the same two
messages.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from monarch.runtime.answers import Outcome
from monarch.runtime.context import running
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import (
    FileChange,
    RefusedFile,
    ReloadOutcome,
    ReloadPlan,
)
from monarch.wire.address import machine_id
from monarch.wire.codec import Envelope
from monarch.wire.message import AnyMessage, Prepare, Revert, Switch
from monarch_sync.reload import Prepared, Reloader, ReloadError, ReloadReport

__all__ = ["ReloadAgent", "project_roots"]

_log = logging.getLogger("monarch.reload")


class ReloadAgent:
    """Changes the code of this process, between two messages, or not at all."""

    def __init__(self, agent: ProcAgent, roots: Sequence[str], label: str) -> None:
        self._agent = agent
        self._node = agent.node
        self._label = label
        self._reloader = Reloader(roots)
        self._prepared: dict[int, tuple[ReloadPlan, Prepared]] = {}
        self._committed: dict[int, ReloadReport] = {}
        self._generation_before = 0
        self._lock = threading.Lock()
        self._node.handle(Prepare, self._on_prepare)
        self._node.handle(Switch, self._on_switch, on_any_thread=True)
        self._node.handle(Revert, self._on_revert)

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Get ``plan`` ready here and in all procs below. Changes nothing visible. Blocks."""
        data = msgspec.msgpack.encode(plan)
        children = self._ask_children(
            lambda port: Prepare(plan.generation, plan.digest, plan.mode, port, self._node.uid),
            data,
        )
        outcome = self._prepare_here(plan)
        return self._gather(outcome, children)

    def switch(self, generation: int) -> ReloadOutcome:
        """Run ``generation`` from here on, here and in all procs below. Blocks.

        Returns when every actor has finished the message that it was in, and switched.
        """
        done: Promise[ReloadOutcome] = Promise()
        actor = running.get()
        uid = self._node.uid
        with self._node.casting:
            # One cast: nothing that we send comes between the procs' switches.
            children = self._ask_children(lambda port: Switch(generation, port, uid), b"")
            self._fence(uid, generation, done.set, actor.record.uid if actor else "")
        done.wait()
        return self._gather(done.value, children)

    def revert(self, generation: int) -> None:
        """Go back to what ran before ``generation``, prepared or switched to. Blocks."""
        children = self._ask_children(lambda port: Revert(generation, port, self._node.uid), b"")
        self._revert_here(generation)
        for child in children:
            child.wait()

    def _ask_children(
        self, make: Callable[[int], AnyMessage], data: bytes
    ) -> list[Promise[Outcome]]:
        return [self._node.request(proc, make, data) for proc in self._agent.owned_procs()]

    def _gather(
        self, outcome: ReloadOutcome, children: Sequence[Promise[Outcome]]
    ) -> ReloadOutcome:
        for child in children:
            child.wait()
            answer = child.value
            if answer.error:
                # A proc that dies now has no code to switch; its owner hears of it elsewhere.
                _log.warning("a proc did not answer: %s", answer.error)
            else:
                outcome.add(msgspec.convert(answer.body, ReloadOutcome))
        return outcome

    def _prepare_here(self, plan: ReloadPlan) -> ReloadOutcome:
        is_local = plan.author_machine == machine_id()
        changes = [*plan.hosts.get(self._agent.host.uid, ()), *(plan.local if is_local else ())]
        paths = [
            *plan.paths.get(self._agent.host.uid, ()),
            *(plan.local_paths if is_local else ()),
        ]
        outcome = ReloadOutcome(num_procs=1)
        with self._lock:
            self._abandon()
            for path in paths:
                self._reloader.add_root(path)
            try:
                # "respawn" and "off" are for the owner to act on; nothing is patched then.
                prepared = self._reloader.prepare(
                    self._sources(changes),
                    mode=plan.mode,  # type: ignore[arg-type]
                )
            except ReloadError as error:
                outcome.refused = [self._refusal(one) for one in error.errors or (error,)]
                return outcome
            self._prepared[plan.generation] = (plan, prepared)
        outcome.modules = list(prepared.verdicts)
        outcome.respawn = [
            f"{verdict.module}: {verdict.reason}"
            for verdict in prepared.verdicts.values()
            if verdict.action == "respawn"
        ]
        return outcome

    def _sources(self, changes: Sequence[FileChange]) -> dict[str, bytes | None]:
        """The new texts of the files that this process has loaded; the others just change."""
        loaded = {os.path.realpath(source.path) for _, source in self._reloader.loaded()}
        texts: dict[str, bytes | None] = {}
        for change in changes:
            if os.path.realpath(change.path) in loaded:
                if change.source:
                    with open(change.source, "rb") as file:
                        texts[change.path] = file.read()
                else:
                    texts[change.path] = None
        return texts

    def _refusal(self, error: ReloadError) -> RefusedFile:
        return RefusedFile(
            self._label, error.message, error.path or "", error.line or 0, error.column or 0,
            error.text or "", error.traceback,
        )  # fmt: skip

    def _fence(
        self, sender: str, generation: int, done: Callable[[ReloadOutcome], None], exempt: str = ""
    ) -> None:
        def switch() -> None:
            done(self._switch_here(generation))

        self._agent.fence(sender, generation, switch, exempt)

    def _switch_here(self, generation: int) -> ReloadOutcome:
        outcome = ReloadOutcome(num_procs=1)
        with self._lock:
            plan, prepared = self._prepared.pop(generation, (None, None))
            if plan is None or prepared is None:
                if self._agent.generation >= generation:
                    return outcome  # Born on this generation, after the others prepared.
                outcome.refused.append(RefusedFile(self._label, "nothing was prepared here"))
                return outcome
            started = time.perf_counter()
            try:
                report = prepared.commit()
            except ReloadError as error:
                outcome.refused.append(self._refusal(error))
                return outcome
            self._committed = {generation: report}
            self._generation_before = self._agent.generation
            self._extend_path(plan.paths.get(self._agent.host.uid, ()))
        self._agent.generation = generation
        outcome.modules, outcome.functions = report.modules, report.functions
        outcome.classes, outcome.reran = report.classes, report.reran
        outcome.actors = self._patched_actors(report)
        outcome.seconds = time.perf_counter() - started
        self._agent.tell_reloaded(report)
        return outcome

    def _extend_path(self, paths: Sequence[str]) -> None:
        # In front, so that the workspace wins over installed copies.
        sys.path[:0] = [path for path in paths if path not in sys.path]

    def _patched_actors(self, report: ReloadReport) -> dict[str, int]:
        found: dict[str, int] = {}
        classes = set(report.classes)
        for cell in self._agent.cells:
            cls = cell.cls
            if cls is None:
                continue
            names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
            if names & classes or any(base.__module__ in report.modules for base in cls.__mro__):
                found[cls.__name__] = found.get(cls.__name__, 0) + 1
        return found

    def _revert_here(self, generation: int) -> None:
        with self._lock:
            _, prepared = self._prepared.pop(generation, (None, None))
            if prepared is not None:
                prepared.abort()
            report = self._committed.pop(generation, None)
            if report is not None:
                report.undo()
                self._agent.generation = self._generation_before

    def _abandon(self) -> None:
        for _, prepared in self._prepared.values():
            prepared.abort()
        self._prepared.clear()

    # From our owner, or, at the root, from whoever pushed.

    def _on_prepare(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Prepare)
        plan = msgspec.msgpack.decode(envelope.payload, type=ReloadPlan)
        self._in_background(order.sender, order.port, lambda: self.prepare(plan))

    def _on_switch(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Switch)
        if order.sender == self._node.uid or self._agent.is_root:
            self._in_background(order.sender, order.port, lambda: self.switch(order.generation))
            return
        # The fence goes up at once, on the receiving thread: that is the switch's place.
        with self._node.casting:
            children = self._ask_children(
                lambda port: Switch(order.generation, port, self._node.uid), b""
            )
        done: Promise[ReloadOutcome] = Promise()
        self._fence(order.sender, order.generation, done.set)

        def finish() -> ReloadOutcome:
            done.wait()
            return self._gather(done.value, children)

        self._in_background(order.sender, order.port, finish)

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
        self._reloader.close()


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
