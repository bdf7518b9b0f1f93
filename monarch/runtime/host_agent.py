"""The agent of a machine: spawns procs, watches over them, and reaps them.

The same code runs in the client, where it serves ``this_host()`` and ends with the client,
and in a process of its own (``host_main``), where it outlives its clients.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch.config import settings
from monarch.runtime.launcher import Launcher, describe_exit
from monarch.runtime.log_stream import LogStream
from monarch.runtime.node import Node
from monarch.runtime.proc_config import ProcConfig
from monarch.runtime.process_group import kill_group
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    Inspect,
    Label,
    Log,
    Preload,
    ProcDown,
    ProcSpec,
    ProcUp,
    SpawnProcs,
    StopProcs,
    StopSelf,
    Watch,
)

__all__ = ["HostAgent"]

_log = logging.getLogger("monarch.host")

_TemplateKey = tuple[str, frozenset[str]]


@dataclass
class _Proc:
    """A proc of this host, as its agent knows it."""

    uid: Uid
    mesh: Uid
    name: str
    label: str
    rank: int
    owner: ProcAddress
    launcher: Launcher
    output: LogStream
    pid: int = 0
    address: ProcAddress | None = None
    watchers: dict[Uid, ProcAddress] = field(default_factory=dict)
    stop_reason: str | None = None

    @property
    def is_stopping(self) -> bool:
        return self.stop_reason is not None


class HostAgent:
    """Makes procs and ends them. Everything here runs on the node's I/O loop."""

    def __init__(self, node: Node, directory: str, name: str = "") -> None:
        self.node = node
        self.name = name or socket.gethostname()
        self.directory = directory
        self.procs: dict[Uid, _Proc] = {}
        self.workspace = ""
        self.workspace_path: Callable[[], tuple[str, ...]] = lambda: ()
        self.generation: Callable[[], int] = lambda: 0
        self.workspace_digest: Callable[[], str] = lambda: ""
        self.follows_client = False
        self.bind_host = "0.0.0.0"
        self._templates: dict[_TemplateKey, Launcher] = {}
        self._gone: dict[Uid, ProcDown] = {}
        self._stops: list[_PendingStop] = []
        node.handle(SpawnProcs, self._on_spawn)
        node.handle(StopProcs, self._on_stop)
        node.handle(Watch, self._on_watch)
        node.handle(Label, self._on_label)
        node.handle(Preload, self._on_preload)
        node.handle(Inspect, self._on_inspect)
        node.handle(ProcUp, self._on_proc_up)

    def _on_spawn(self, envelope: Envelope) -> None:
        spawn = envelope.message
        assert isinstance(spawn, SpawnProcs)
        for spec in spawn.procs:
            try:
                self._start(spawn, spec)
            except OSError as error:
                reason = f"it could not be started: {error}"
                self.node.send(spawn.owner, ProcDown(spec.uid, reason, self.name))

    def _start(self, spawn: SpawnProcs, spec: ProcSpec) -> None:
        launcher = self._template(spawn.python, spawn.preload)
        output = LogStream(
            self.node.loop,
            settings().log_tail_lines,
            lambda stream, lines: self._on_lines(spec.uid, stream, lines),
        )
        proc = _Proc(
            spec.uid, spawn.mesh, spawn.name, f"{spawn.name} {spec.rank}", spec.rank,
            spawn.owner, launcher, output,
        )  # fmt: skip
        self.procs[spec.uid] = proc
        out, err = output.open()
        try:
            launcher.fork(self._config(spawn, spec, launcher), out, err)
        finally:
            os.close(out)
            os.close(err)

    def _config(self, spawn: SpawnProcs, spec: ProcSpec, launcher: Launcher) -> ProcConfig:
        env: dict[str, str | None] = {}
        if self.follows_client:
            env.update(_changes(launcher.environment, dict(os.environ)))
        env.update(spec.env)
        keys = self.node.keys
        return ProcConfig(
            uid=spec.uid, mesh=spawn.mesh, name=spawn.name, rank=spec.rank,
            labels=spawn.labels, sizes=spawn.sizes, owner=spawn.owner,
            owner_actor=spawn.owner_actor, host=self.node.address,
            listen=self._urls(spec.uid), secret=keys.secret.hex() if keys else "",
            env=env, path=spawn.path, workspace=self.workspace,
            workspace_path=self.workspace_path(), generation=self.generation(),
            directory=os.getcwd() if self.follows_client else "",
        )  # fmt: skip

    def _urls(self, uid: Uid) -> tuple[str, ...]:
        """Where a new proc listens: for this machine, and beyond it where we do too."""
        local = f"ipc://{self.directory}/{uid}"
        beyond = [url for url in self.node.address.urls if url.startswith("tcp://")]
        if not beyond:
            return (local,)
        host = beyond[0].rpartition(":")[0]
        return (local, f"{host}:0@tcp://{self.bind_host}:0")

    def _template(self, python: str, preload: Sequence[str]) -> Launcher:
        key = (python, frozenset(preload))
        launcher = self._templates.get(key)
        if launcher is None or not launcher.is_alive:
            launcher = Launcher(self.node.loop, self._on_forked, self._on_exited, python)
            if preload:
                launcher.preload(preload, _log_preload_errors)
            self._templates[key] = launcher
        return launcher

    def _on_preload(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Preload)
        launcher = self._template("", order.modules)

        def done(errors: dict[str, str]) -> None:
            text = "; ".join(f"{name}: {error}" for name, error in errors.items())
            self.node.answer(order.sender, order.port, error=text)

        launcher.preload(order.modules, done)

    def _on_forked(self, uid: Uid, pid: int) -> None:
        proc = self.procs.get(uid)
        if proc is not None:
            proc.pid = pid
            if proc.is_stopping:
                proc.launcher.kill(uid)

    def _on_proc_up(self, envelope: Envelope) -> None:
        up = envelope.message
        assert isinstance(up, ProcUp)
        self.node.peer_up(up.proc)
        proc = self.procs.get(up.proc.uid)
        if proc is not None:
            proc.address = up.proc
            for watcher in proc.watchers.values():
                self.node.send(watcher, up)

    def _on_watch(self, envelope: Envelope) -> None:
        watch = envelope.message
        assert isinstance(watch, Watch)
        proc = self.procs.get(watch.uid)
        if proc is None:
            unknown = ProcDown(watch.uid, "its host agent does not know it", self.name)
            self.node.send(watch.watcher, self._gone.get(watch.uid, unknown))
            return
        proc.watchers[watch.watcher.uid] = watch.watcher
        if proc.address is not None:
            self.node.send(watch.watcher, ProcUp(proc.address, proc.pid))

    def _on_label(self, envelope: Envelope) -> None:
        label = envelope.message
        assert isinstance(label, Label)
        if label.uid in self.procs:
            self.procs[label.uid].label = label.label

    def _on_lines(self, uid: Uid, stream: int, lines: list[str]) -> None:
        proc = self.procs.get(uid)
        if proc is not None:
            self.node.send(proc.owner, Log(uid, proc.label, stream, tuple(lines)))

    def _on_exited(self, uid: Uid, code: int | None) -> None:
        proc = self.procs.get(uid)
        if proc is None:
            return
        # Its last words first: they are part of the report.
        proc.output.drain()
        del self.procs[uid]
        if code is None and proc.pid:
            # With its template gone, nobody else ends what the proc started.
            kill_group(proc.pid)
        asked = proc.stop_reason
        reason = describe_exit(code) if asked is None else f"it was stopped ({asked})"
        down = ProcDown(uid, reason, self.name, tuple(proc.output.tail), asked is not None)
        self._gone[uid] = down
        with contextlib.suppress(OSError):
            os.unlink(f"{self.directory}/{uid}")
        told = {proc.owner.uid: proc.owner, **proc.watchers, self.node.uid: self.node.address}
        for address in told.values():
            self.node.send(address, down)
        self.stop([p.uid for p in self.procs.values() if p.owner.uid == uid], 0.0)
        for stop in list(self._stops):
            if stop.ended(uid):
                self._stops.remove(stop)

    def _on_stop(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, StopProcs)

        def done() -> None:
            self.node.answer(order.sender, order.port)

        self.stop(order.uids, order.grace_seconds, order.reason, done)

    def stop(
        self,
        uids: Sequence[Uid],
        grace_seconds: float,
        reason: str = "stopped",
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """End procs: asked politely, killed after ``grace_seconds``; ``done`` once all are gone."""
        procs = [self.procs[uid] for uid in uids if uid in self.procs]
        if not procs:
            done()
            return
        self._stops.append(_PendingStop({proc.uid for proc in procs}, done))
        for proc in procs:
            proc.stop_reason = proc.stop_reason or reason
            if grace_seconds > 0 and proc.address is not None:
                self.node.send(proc.address, StopSelf(reason))
            elif proc.pid:
                proc.launcher.kill(proc.uid)
        if grace_seconds > 0:
            self.node.loop.call_later(grace_seconds, lambda: self._kill_rest(procs))

    def _kill_rest(self, procs: Sequence[_Proc]) -> None:
        for proc in procs:
            if proc.uid in self.procs:
                proc.launcher.kill(proc.uid)

    def _on_inspect(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Inspect)
        self.node.answer(order.sender, order.port, self.describe())

    def describe(self) -> dict[str, Any]:
        """What runs here, for ``monarch status``."""
        return {
            "host": self.name,
            "pid": os.getpid(),
            "workspace": self.workspace,
            "generation": self.generation(),
            "digest": self.workspace_digest(),
            "procs": [
                {"uid": p.uid, "name": p.label, "mesh": p.name, "rank": p.rank, "pid": p.pid,
                 "is_up": p.address is not None}
                for p in self.procs.values()
            ],
        }  # fmt: skip

    def close(self) -> None:
        """Kill every proc and template. On the loop."""
        for launcher in self._templates.values():
            launcher.close()
        for proc in self.procs.values():
            proc.output.drain()
        self.procs.clear()


class _PendingStop:
    """Procs that were asked to end, and what to do once they have."""

    def __init__(self, uids: set[Uid], done: Callable[[], None]) -> None:
        self._uids = uids
        self._done = done

    def ended(self, uid: Uid) -> bool:
        self._uids.discard(uid)
        if not self._uids:
            self._done()
        return not self._uids


def _changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """What turns one environment into another."""
    changed: dict[str, str | None] = {k: v for k, v in now.items() if before.get(k) != v}
    changed.update({name: None for name in before if name not in now})
    return changed


def _log_preload_errors(errors: dict[str, str]) -> None:
    for name, error in errors.items():
        _log.warning("could not preload %s: %s", name, error)
