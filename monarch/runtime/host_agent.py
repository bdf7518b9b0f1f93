"""The agent of a machine: spawns procs, watches over them, and reaps them.

The same code runs in the client, where it serves ``this_host()`` and ends with the client,
and in a process of its own (``host_main``), where it outlives its clients.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from monarch.net.segment_door import door_path
from monarch.runtime.exit_reason import ExitReasons
from monarch.runtime.hang_watch import HangWatch
from monarch.runtime.host_watch import HostWatch
from monarch.runtime.launcher import Launcher, MakesProcs, StartLauncher
from monarch.runtime.log_courier import LogCourier
from monarch.runtime.node import Node
from monarch.runtime.proc_config import ProcConfig
from monarch.runtime.process_group import kill_group
from monarch.runtime.replacements import Replacements
from monarch.runtime.secret import SECRET_VARIABLES
from monarch.runtime.templates import Templates
from monarch.runtime.waiting_spawns import WaitingSpawns
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    Inspect,
    Notice,
    Preload,
    ProcAgain,
    ProcDown,
    ProcsDown,
    ProcSpec,
    ProcUp,
    SpawnProcs,
    StopProcs,
    StopSelf,
    Watch,
)

__all__ = ["HostAgent"]

_log = logging.getLogger("monarch.host")

_EARLY_SECONDS = 5.0
"""How much longer than a reference to a proc the order to make it may be on its way."""

_MAX_GONE = 10_000
"""How many ends of procs are remembered. Who asks for an older one is told, after a moment, that
nobody here knows the proc: gone it is in either case."""

_UID = re.compile(r"[A-Za-z0-9]+(\.[0-9]+)?")


@dataclass
class _Proc:
    """A proc of this host, as its agent knows it."""

    uid: Uid
    mesh: Uid
    name: str
    rank: int
    owner: ProcAddress
    launcher: MakesProcs
    order: tuple[SpawnProcs, ProcSpec, bytes]
    life: int = 0
    pid: int = 0
    address: ProcAddress | None = None
    watchers: dict[Uid, ProcAddress] = field(default_factory=dict)
    stop_reason: str | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {self.rank}"


class HostAgent:
    """Makes procs and ends them. Everything here runs on the node's I/O loop."""

    def __init__(
        self,
        node: Node,
        directory: str,
        name: str = "",
        start_launcher: StartLauncher = Launcher,
    ) -> None:
        self.node = node
        self.name = name or socket.gethostname()
        self.directory = directory
        self.procs: dict[Uid, _Proc] = {}
        self.workspace = ""
        self.packages: Callable[[], dict[str, Any]] = dict
        self.workspace_path: Callable[[], tuple[str, ...]] = lambda: ()
        self.generation: Callable[[], int] = lambda: 0
        self.workspace_digest: Callable[[], str] = lambda: ""
        self.staged_bytes: Callable[[], int] = lambda: 0
        self.workspace_moves: Callable[[], bool] = lambda: False
        # Of the folder, where others may see the same: what it is, and whether we write it.
        self.replica: Callable[[], tuple[str, bool]] = lambda: ("", False)
        self.follows_client = False
        self.bind_host = "0.0.0.0"
        self.templates = Templates(
            lambda command: start_launcher(node.loop, self._on_forked, self._on_exited, command)
        )
        self._gone: dict[Uid, ProcDown] = {}
        self._mourners: dict[Uid, dict[Uid, ProcAddress]] = {}
        self._early: dict[Uid, dict[Uid, ProcAddress]] = {}
        self._stops: list[_PendingStop] = []
        self._exits = ExitReasons()
        self._lost_together: list[tuple[ProcDown, dict[Uid, ProcAddress]]] = []
        self.client: Callable[[], ProcAddress | None] = lambda: None
        self.logs = LogCourier(node, self.name, lambda: self.client())
        self.others = HostWatch(node)
        self._replacements = Replacements(node, self.procs, self._end_to_replace)
        self.waiting = WaitingSpawns(self)
        self._hangs = HangWatch(node, self.procs, self._stacks_path, self._tell_client)
        node.handle(SpawnProcs, self._on_spawn)
        node.handle(StopProcs, self._on_stop)
        node.handle(Watch, self._on_watch)
        node.handle(Preload, self._on_preload)
        node.handle(Inspect, self._on_inspect)
        node.handle(ProcUp, self._on_proc_up)
        node.partings.on_peer_down.append(self._on_peer_down)

    def _on_spawn(self, envelope: Envelope) -> None:
        if not self.waiting.holds(envelope):
            self.start_procs(envelope)

    def start_procs(self, envelope: Envelope) -> None:
        """Make the procs of an order that need not wait."""
        spawn = envelope.message
        assert isinstance(spawn, SpawnProcs)
        setup = bytes(envelope.payload)
        for spec in spawn.procs:
            if spec.uid in self.procs:
                _log.warning("an order to make the proc %s, which there is, was dropped", spec.uid)
                continue
            try:
                self._start(spawn, spec, setup)
            except (OSError, ValueError) as error:
                self.never_started(spawn.owner, spec.uid, error)

    @property
    def num_running(self) -> int:
        """How many procs there are."""
        return len(self.procs)

    def never_started(self, owner: ProcAddress, uid: Uid, error: Exception) -> None:
        """Tell those concerned that a proc will not be."""
        proc = self.procs.pop(uid, None)
        self.logs.end(uid)
        down = ProcDown(uid, f"it could not be started: {error}", self.name)
        self._bury(down)
        watchers = proc.watchers if proc is not None else self._early.pop(uid, {})
        mourners = self._mourners.pop(uid, {})
        for told in {owner.uid: owner, **watchers, **mourners}.values():
            self.node.send(told, down)

    def _start(self, spawn: SpawnProcs, spec: ProcSpec, setup: bytes, life: int = 0) -> None:
        if not _UID.fullmatch(spec.uid):
            raise ValueError(f"{spec.uid!r} is no name for a proc")  # It becomes a file's.
        launcher = self.templates.maker(spec.command or spawn.command, spawn.preload)
        order = spawn, spec, setup
        proc = _Proc(
            spec.uid, spawn.mesh, spawn.name, spec.rank, spawn.owner, launcher, order, life
        )  # fmt: skip
        early = self._early.pop(spec.uid, {})
        early.pop(self.node.uid, None)  # Told in any case.
        proc.watchers.update(early)
        self.procs[spec.uid] = proc
        label = f"{spawn.name} {spec.rank}"
        out, err = self.logs.open(spec.uid, spawn.mesh, spawn.name, spec.rank, label)
        try:
            config = msgspec.structs.replace(self._config(spawn, spec, launcher), life=life)
            launcher.fork(config, out, err, setup)
        finally:
            os.close(out)
            os.close(err)

    def _enter(self, spawn: SpawnProcs, spec: ProcSpec, launcher: MakesProcs) -> None:
        """A proc is ours from here on, and whoever has asked for it is told of it."""
        order = spawn, spec, b""
        proc = _Proc(spec.uid, spawn.mesh, spawn.name, spec.rank, spawn.owner, launcher, order)
        proc.watchers.update(self._early.pop(spec.uid, {}))
        self.procs[spec.uid] = proc

    def _config(self, spawn: SpawnProcs, spec: ProcSpec, launcher: MakesProcs) -> ProcConfig:
        env: dict[str, str | None] = {}
        if self.follows_client:
            env.update(launcher.drift())
        env.update(spec.env)
        for name in SECRET_VARIABLES:
            env.pop(name, None)
        keys = self.node.keys
        return ProcConfig(
            uid=spec.uid, mesh=spawn.mesh, name=spawn.name, rank=spec.rank,
            labels=spawn.labels, sizes=spawn.sizes, owner=spawn.owner,
            owner_actor=spawn.owner_actor, host=self.node.address,
            listen=self._urls(spec.uid), secret=keys.secret.hex() if keys else "",
            env=env, path=spawn.path, workspace=self.workspace,
            workspace_path=self.workspace_path(),
            generation=spawn.generation or self.generation(),
            directory=os.getcwd() if self.follows_client else "",
            root=spawn.root, bind=spec.bind, command=spawn.command, is_quiet=spawn.is_quiet,
            config=spawn.config, log_level=self.logs.level, insecure=self.node.is_insecure,
        )  # fmt: skip

    def _urls(self, uid: Uid) -> tuple[str, ...]:
        """Where a new proc listens: for this machine, and beyond it where we do too."""
        local = f"ipc://{self.directory}/{uid}"
        beyond = [url for url in self.node.address.urls if url.startswith("tcp://")]
        if not beyond:
            return (local,)
        host = beyond[0].rpartition(":")[0]
        return (local, f"{host}:0@tcp://{self.bind_host}:0")

    def _on_preload(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Preload)
        template = self.templates.ahead(order.modules)

        def done(errors: dict[str, str]) -> None:
            text = "; ".join(f"{name}: {error}" for name, error in errors.items())
            self.node.answer(order.sender, order.port, error=text)

        template.preload(order.modules, done)

    def _on_forked(self, uid: Uid, pid: int) -> None:
        proc = self.procs.get(uid)
        if proc is not None:
            proc.pid = pid

    def _on_proc_up(self, envelope: Envelope) -> None:
        up = envelope.message
        assert isinstance(up, ProcUp)
        self.node.known.peer_up(up.proc)
        self.others.is_up(up)
        proc = self.procs.get(up.proc.uid)
        if proc is not None:
            proc.address = up.proc
            self._hangs.start()
            self._replacements.is_up(proc.uid)
            for watcher in proc.watchers.values():
                self.node.send(watcher, up)

    def _on_watch(self, envelope: Envelope) -> None:
        watch = envelope.message
        assert isinstance(watch, Watch)
        if watch.uid == self.node.uid:
            self.others.introduce(watch.watcher)
            return
        proc = self.procs.get(watch.uid)
        if proc is None and watch.uid in self._gone:
            self.node.send(watch.watcher, self._gone[watch.uid])
            return
        if proc is None:
            # A reference may get here before the order to make what it refers to.
            if watch.uid not in self._early:
                self.node.loop.call_later(_EARLY_SECONDS, lambda: self._give_up(watch.uid))
            self._early.setdefault(watch.uid, {})[watch.watcher.uid] = watch.watcher
            return
        if watch.watcher.uid == self.node.uid:
            return  # We are told of each of our procs, and would tell ourselves of it for ever.
        proc.watchers[watch.watcher.uid] = watch.watcher
        if proc.address is not None:
            self.node.send(watch.watcher, ProcUp(proc.address, proc.pid))

    def mourn(self, uid: Uid, mourner: ProcAddress) -> None:
        """Tell ``mourner`` when a proc of this host ends; it may be yet to come."""
        if uid in self._gone:
            self.node.send(mourner, self._gone[uid])
        else:
            self._mourners.setdefault(uid, {})[mourner.uid] = mourner

    def forget_mourners(self) -> None:
        """The client has left, and with it all who wait for procs that it had not ordered yet."""
        self._mourners = {uid: who for uid, who in self._mourners.items() if uid in self.procs}
        self.waiting.clear()

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        # On whatever thread noticed it.
        self.node.loop.call_soon(lambda: self._forget_watcher(uid))

    def _forget_watcher(self, uid: Uid) -> None:
        """Whoever is gone need not be told of anybody's end."""
        for proc in self.procs.values():
            proc.watchers.pop(uid, None)
        for mourned, mourners in list(self._mourners.items()):
            if mourners.pop(uid, None) is not None and not mourners:
                del self._mourners[mourned]

    def _give_up(self, uid: Uid) -> None:
        """Tell those who watch for a proc that nobody has ordered."""
        if self.waiting.has(uid):
            self.node.loop.call_later(_EARLY_SECONDS, lambda: self._give_up(uid))
            return
        unknown = ProcDown(uid, "its host agent does not know it", self.name)
        for watcher in self._early.pop(uid, {}).values():
            self.node.send(watcher, unknown)

    def _on_exited(self, uid: Uid, code: int | None) -> None:
        proc = self.procs.get(uid)
        if proc is None:
            return
        # Its last words first: they are part of the report.
        last = self.logs.end(uid)
        del self.procs[uid]
        self._hangs.forget(uid)
        if code is None and proc.pid:
            # With its template gone, nobody else ends what the proc started.
            kill_group(proc.pid)
        for path in self._files_of(uid):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._replacements.is_wanted(uid):
            self._replace(proc, code)
            return
        asked = proc.stop_reason
        reason = self._exits.describe(code) if asked is None else f"it was stopped ({asked})"
        down = ProcDown(
            uid, reason, self.name, last.lines, asked is not None,
            name=proc.label, log_file=last.path,
        )  # fmt: skip
        self._bury(down)
        self._replacements.is_lost(uid, reason)
        told = {proc.owner.uid: proc.owner, **proc.watchers, self.node.uid: self.node.address}
        told |= self._mourners.pop(uid, {})
        if code is None and asked is None:
            self._lose_together(down, told)
        else:
            for address in told.values():
                self.node.send(address, down)
        self._clear_after(proc)

    def _clear_after(self, proc: _Proc) -> None:
        """End what a dead proc has spawned here, and tell those who wait for its end."""
        self.stop([p.uid for p in self.procs.values() if p.owner.uid == proc.uid], 0.0)
        if not self.templates.is_shared(proc.launcher):
            proc.launcher.close()
        for stop in list(self._stops):
            if stop.ended(proc.uid):
                self._stops.remove(stop)

    def _files_of(self, uid: Uid) -> tuple[str, ...]:
        socket_path = f"{self.directory}/{uid}"
        return socket_path, door_path(socket_path), self._stacks_path(uid)

    def _end_to_replace(self, uids: Sequence[Uid], reason: str, grace_seconds: float) -> None:
        self.stop(uids, grace_seconds, reason)

    def _replace(self, old: _Proc, code: int | None) -> None:
        """A proc has ended to make room for a new one of its uid."""
        spawn, spec, setup = old.order
        # The files here are newer than they were at the spawn.
        newest = max(spawn.generation, self.generation())
        spawn = msgspec.structs.replace(spawn, generation=newest)
        reason = f"it was replaced ({old.stop_reason})"
        again = ProcAgain(old.uid, old.label, reason, code == 0)
        told = {old.owner.uid: old.owner, **old.watchers, self.node.uid: self.node.address}
        for address in {**told, **self._mourners.get(old.uid, {})}.values():
            self.node.send(address, again)
        self._clear_after(old)
        self._early[old.uid] = {**self._early.get(old.uid, {}), **old.watchers}
        try:
            self._start(spawn, spec, setup, old.life + 1)
        except (OSError, ValueError) as error:
            self.never_started(spawn.owner, old.uid, error)
            self._replacements.is_lost(old.uid, f"it could not be started: {error}")

    def _lose_together(self, down: ProcDown, told: dict[Uid, ProcAddress]) -> None:
        """Their template died: what dies with it is told as one event."""
        if not self._lost_together:
            self.node.loop.call_soon(self._tell_lost)
        self._lost_together.append((down, told))

    def _tell_lost(self) -> None:
        lost, self._lost_together = self._lost_together, []
        cause = f"template of {lost[0][0].uid}"
        for uid, address in {uid: a for _, told in lost for uid, a in told.items()}.items():
            downs = tuple(down for down, told in lost if uid in told)
            self.node.send(address, ProcsDown(downs, cause))

    def _stacks_path(self, uid: Uid) -> str:
        return f"{self.directory}/{uid}.stacks"

    def _tell_client(self, text: str) -> None:
        client = self.client()
        if client is not None:
            self.node.send(client, Notice(text))

    def _bury(self, down: ProcDown) -> None:
        """Remember how a proc ended, for whoever asks later; the last ones only."""
        self._gone[down.uid] = down
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

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
        self.waiting.drop(uids)
        procs = [self.procs[uid] for uid in uids if uid in self.procs]
        self._replacements.cancel(uids)
        if not procs:
            done()
            return
        self._stops.append(_PendingStop({proc.uid for proc in procs}, done))
        for proc in procs:
            proc.stop_reason = proc.stop_reason or reason
            if not proc.pid:
                self._unmake(proc)
            elif grace_seconds > 0 and proc.address is not None:
                self.node.send(proc.address, StopSelf(reason))
            else:
                proc.launcher.kill(proc.uid)
        if grace_seconds > 0:
            self.node.loop.call_later(grace_seconds, lambda: self._kill_rest(procs))

    def _unmake(self, proc: _Proc) -> None:
        """End a proc that has not been forked: its template may be busy importing for long."""
        # Behind the order to fork it; so it is killed before it has done anything.
        proc.launcher.kill(proc.uid)
        self.node.loop.call_soon(lambda: self._on_exited(proc.uid, -signal.SIGKILL))

    def _kill_rest(self, procs: Sequence[_Proc]) -> None:
        for proc in procs:
            if self.procs.get(proc.uid) is proc:
                proc.launcher.kill(proc.uid)

    def _on_inspect(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Inspect)
        self.node.answer(order.sender, order.port, self.describe(packages=order.packages))

    def describe(self, *, packages: bool = False) -> dict[str, Any]:
        """What runs here, for ``monarch status``; with ``packages`` also what is installed."""
        body = self.packages() if packages else {}
        return body | {
            "host": self.name,
            "pid": os.getpid(),
            "machine": self.node.address.machine,
            "workspace": self.workspace,
            "generation": self.generation(),
            "digest": self.workspace_digest(),
            "staged_bytes": self.staged_bytes(),
            "replica": self.replica()[0],
            "writes": self.replica()[1],
            "procs": [
                {"uid": p.uid, "name": self.logs.label(p.uid), "mesh": p.name, "rank": p.rank,
                 "pid": p.pid, "is_up": p.address is not None, "hangs": self._hangs.text(p.uid),
                 "address": p.address}
                for p in self.procs.values()
            ],
        }  # fmt: skip

    def close(self) -> None:
        """Kill every proc and template. On the loop."""
        for launcher in {*self.templates.all, *(p.launcher for p in self.procs.values())}:
            launcher.close()
        self.logs.close()
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
