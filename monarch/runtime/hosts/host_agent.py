"""The agent of a machine: spawns procs, watches them, and reaps them.

The same code runs in the client, where it serves ``this_host()`` and ends with the client, and in a
process of its own (``host_main``), where it outlives its clients.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence

import msgspec

from monarch.config import settings
from monarch.net.segment_door import door_path
from monarch.runtime.debugger.hold_book import HoldBook
from monarch.runtime.debugger.later_procs import LaterBreaks, LaterEnvironment
from monarch.runtime.ends.process_group import kill_lost_group
from monarch.runtime.hosts.bulletins import Bulletins
from monarch.runtime.hosts.directory import stores_beside
from monarch.runtime.hosts.hang_watch import HangWatch
from monarch.runtime.hosts.held_memory import HeldMemory
from monarch.runtime.hosts.host_desk import HostDesk
from monarch.runtime.hosts.host_link import HostWatch
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.hosts.hosted_workspace import HostedWorkspace, NoWorkspace
from monarch.runtime.hosts.launcher import ExitReasons, Launcher, MakesProcs, StartLauncher
from monarch.runtime.hosts.proc_stops import ProcStops
from monarch.runtime.hosts.proc_watchers import ProcWatchers
from monarch.runtime.hosts.replacements import Replacements
from monarch.runtime.hosts.templates import Templates
from monarch.runtime.hosts.waiting_spawns import WaitingSpawns
from monarch.runtime.links.secret import SECRET_VARIABLES
from monarch.runtime.node import Node
from monarch.runtime.output.log_sender import LogSender
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.runtime.procs.seen_imports import is_read_at_import
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    HostState,
    Imported,
    Inspect,
    Notice,
    Preload,
    ProcAgain,
    ProcDown,
    ProcSpec,
    ProcState,
    ProcUp,
    ReplaceProcs,
    SpawnProcs,
    StopProcs,
    Watch,
)

_log = logging.getLogger("monarch.host")

_UID = re.compile(r"[A-Za-z0-9]+(\.[0-9]+)?")


class HostAgent:
    """Makes procs and ends them. Everything here runs on the node's I/O loop."""

    def __init__(
        self,
        node: Node,
        directory: str,
        name: str = "",
        *,
        workspace: HostedWorkspace | None = None,
        follows_client: bool = False,
        start_launcher: StartLauncher = Launcher,
    ) -> None:
        self.node = node
        #: The host's name in reports.
        self.name = name or socket.gethostname()
        #: The folder of the sockets of its procs.
        self.directory = directory
        #: The procs that were ordered and have not ended.
        self.procs: dict[Uid, HostProc] = {}
        self.workspace: HostedWorkspace = workspace or NoWorkspace()
        #: True inside the client: its procs have the client's environment and folder.
        self.follows_client = follows_client
        #: The client of an agent in a process of its own; None if none is attached.
        self._attached: ProcAddress | None = None
        #: The address of the interface at which its procs listen beyond this machine.
        self.bind_host = "0.0.0.0"
        #: The URL at which the agent listens, if procs here cannot use the one that clients have.
        self.bind = ""
        self.templates = Templates(
            lambda command: start_launcher(node.loop, self._on_forked, self._on_exited, command)
        )
        self._exits = ExitReasons()
        #: The output of its procs.
        self.logs = LogSender(node, self.name, lambda: self.client)
        #: The watch over other hosts, and for them.
        self.others = HostWatch(node)
        self.bulletins = Bulletins(node)
        #: The held calls of its procs.
        self.holds = HoldBook(node)
        #: Variables and breakpoints for procs that start later.
        self._later_env = LaterEnvironment(node)
        self._later_breaks = LaterBreaks(node)
        self._replacements = Replacements(node, self.procs, self._end_to_replace)
        #: Orders that wait for a state of the workspace.
        self.waiting = WaitingSpawns(self)
        #: The processes that are told when a proc is up, and when it ends.
        self.watchers = ProcWatchers(node, self.name, self.procs, self.waiting.has)
        self._stops = ProcStops(node, self.procs, self._on_exited)
        self._hangs = HangWatch(node, self.procs, self._stacks_path, self._tell_client)
        #: Memory of procs that outlives them.
        self.memory = HeldMemory(node, self.procs)
        #: Answers questions about the host; keeps rows of ended procs.
        self.desk = HostDesk(self)
        node.handle(SpawnProcs, self._on_spawn)
        node.on(StopProcs, self._on_stop)
        node.on(Watch, self._on_watch)
        node.on(Preload, self._on_preload)
        node.on(Inspect, self._on_inspect)
        node.on(ProcUp, self._on_proc_up)
        node.on(Imported, self._on_imported)
        self.workspace.serve(self)

    @property
    def client(self) -> ProcAddress | None:
        """The client that this host serves; None if there is none.

        It is the program in whose process this host is, or else the attached client.
        """
        return self.node.address if self.follows_client else self._attached

    def admit(self, client: ProcAddress | None) -> None:
        """Serve an attached client from now on; with None, no client."""
        self._attached = client

    def workspace_changed(self) -> None:
        """Start the procs that waited for the workspace, because it has new files or a push has
        ended.
        """
        self.waiting.changed()

    def publish(self, bulletin: Bulletin) -> None:
        """Publish a bulletin to the listeners of this host."""
        self.bulletins.add(bulletin)

    def _on_spawn(self, envelope: Envelope[SpawnProcs]) -> None:
        if not self.waiting.holds(envelope):
            self.start_procs(envelope)

    def start_procs(self, envelope: Envelope[SpawnProcs]) -> None:
        """Make the procs of an order.

        A proc that cannot be started is reported to its owner and watchers.
        """
        spawn = envelope.message
        setup = bytes(envelope.payload)
        for spec in spawn.procs:
            if spec.uid in self.procs:
                _log.warning("an order to make the proc %s, which there is, was dropped", spec.uid)
                continue
            try:
                self._start(spawn, spec, setup)
            except (OSError, ValueError) as error:
                self.never_started(spawn.owner, spec.uid, error)

    def never_started(self, owner: ProcAddress, uid: Uid, error: Exception) -> None:
        """Report to the owner and the watchers of a proc that the proc could not be started."""
        proc = self.procs.pop(uid, None)
        if proc is not None and not self.templates.is_shared(proc.launcher):
            proc.launcher.close()
        self.logs.end(uid)
        self.watchers.never_began(owner, uid, error)

    def _start(self, spawn: SpawnProcs, spec: ProcSpec, setup: bytes, life: int = 0) -> None:
        if not _UID.fullmatch(spec.uid):
            raise ValueError(f"{spec.uid!r} is no name for a proc")  # It becomes a file's.
        command = spec.command or spawn.command
        launcher = self.templates.maker(
            command, spawn.preload, lambda learned: self._fits(learned, spec)
        )
        proc = HostProc(spawn, spec, setup, launcher, life)
        self.procs[proc.uid] = proc
        self.watchers.made(proc.uid)
        out, err = self.logs.open(spec.uid, spawn.mesh, spawn.name, spec.rank, proc.label)
        try:
            launcher.fork(self._config(proc), out, err, setup)
        finally:
            os.close(out)
            os.close(err)

    def _fits(self, learned: MakesProcs, spec: ProcSpec) -> bool:
        """Return whether libraries that the template has imported would find the same environment
        variables in the proc that they found in the template.
        """
        changed = {*spec.env, *(learned.drift() if self.follows_client else ())}
        return settings().learn_imports and not (spec.bind or any(map(is_read_at_import, changed)))

    def _on_imported(self, imported: Imported) -> None:
        proc = self.procs.get(imported.uid)
        if proc is not None and settings().learn_imports:
            self.templates.learn(proc.launcher, imported.modules)

    def _config(self, proc: HostProc) -> ProcConfig:
        spawn, spec = proc.spawn, proc.spec
        env: dict[str, str | None] = {}
        if self.follows_client:
            env.update(proc.launcher.drift())
        env.update(spec.env)
        env.update(self._later_env.of(spec.rank))
        for name in SECRET_VARIABLES:
            env.pop(name, None)
        keys = self.node.keys
        return ProcConfig(
            uid=spec.uid,
            mesh=spawn.mesh,
            name=spawn.name,
            rank=spec.rank,
            labels=spawn.labels,
            sizes=spawn.sizes,
            owner=spawn.owner,
            owner_actor=spawn.owner_actor,
            host=self.node.address,
            listen=self._urls(spec.uid),
            host_bind=self.bind,
            secret=keys.secret.hex() if keys else "",
            env=env,
            path=tuple(map(os.fsdecode, spawn.path)),
            workspace=self.workspace.root,
            workspace_path=self.workspace.import_folders(),
            generation=spawn.generation or self.workspace.generation,
            directory=os.getcwd() if self.follows_client else "",
            root=spawn.root,
            bind=spec.bind,
            command=spawn.command,
            is_quiet=spawn.is_quiet,
            config=spawn.config,
            log_level=self.logs.level,
            insecure=self.node.is_insecure,
            life=proc.life,
            codes=spawn.codes,
            breaks=self._later_breaks.of(spec.rank, spawn.labels, spawn.sizes),
        )

    def _urls(self, uid: Uid) -> tuple[str, ...]:
        """Return the URLs at which a new proc listens: within this machine, and beyond it if the
        agent does."""
        local = f"ipc://{self.directory}/{uid}"
        beyond = [url for url in self.node.address.urls if url.startswith("tcp://")]
        if not beyond:
            return (local,)
        host = beyond[0].rpartition(":")[0]
        return (local, f"{host}:0@tcp://{self.bind_host}:0")

    def _on_preload(self, order: Preload) -> None:
        template = self.templates.ahead(order.modules)

        def done(errors: dict[str, str]) -> None:
            text = "; ".join(f"{name}: {error}" for name, error in errors.items())
            self.node.answer(order, error=text)

        template.preload(order.modules, done)

    def _on_forked(self, uid: Uid, pid: int, started: int) -> None:
        proc = self.procs.get(uid)
        if proc is not None:
            proc.pid, proc.started = pid, started

    def _on_proc_up(self, up: ProcUp) -> None:
        self.node.address_book.peer_up(up.proc)
        self.others.is_up(up)
        proc = self.procs.get(up.proc.uid)
        if proc is not None:
            proc.address = up.proc
            self._hangs.start()
            self._replacements.is_up(proc.uid)
            self.watchers.up(up)

    def _on_watch(self, watch: Watch) -> None:
        if watch.uid == self.node.uid:
            self.others.introduce(watch.watcher)
        else:
            self.watchers.watch(watch.uid, watch.watcher)

    def forget_client(self) -> None:
        """Forget the client, which has left: its waiting orders and its kept memory.

        Also forgets the watchers of procs that do not exist.
        """
        self.watchers.forget_end_watchers()
        self.waiting.clear()
        self.memory.clear()

    def _on_exited(self, uid: Uid, code: int | None) -> None:
        proc = self.procs.get(uid)
        if proc is None:
            return
        # First, because its last output is a part of the report.
        last_words = self.logs.end(uid)
        del self.procs[uid]
        self._hangs.forget(uid)
        if code is None and proc.pid:
            # With its template gone, no other process ends what the proc started.
            kill_lost_group(proc.pid, proc.started)
        for path in self._files_of(uid):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._replacements.is_wanted(uid):
            self.holds.forget(uid)
            self._replace(proc, code)
            return
        is_expected = proc.stop_reason is not None
        if is_expected:
            reason = f"it was stopped ({proc.stop_reason})"
        else:
            reason = self._exits.describe(code)
        self.holds.forget(uid, "" if is_expected else reason)
        down = ProcDown(
            uid,
            reason,
            self.name,
            last_words.lines,
            is_expected,
            name=proc.label,
            log_file=last_words.path,
        )
        self.desk.proc_ended(proc, reason, is_expected)
        self._replacements.is_lost(uid, reason)
        # Without an exit code, its template has died, and all other procs of that with it.
        self.watchers.ended(proc, down, is_shared=code is None and not is_expected)
        self._clear_after(proc)

    def _clear_after(self, proc: HostProc) -> None:
        """Clean up after a dead proc: end the procs that it has spawned here, and answer the orders
        that wait for its end.
        """
        self.stop([p.uid for p in self.procs.values() if p.owner.uid == proc.uid], 0.0)
        if not self.templates.is_shared(proc.launcher):
            proc.launcher.close()
        self.templates.let_go(proc.launcher for proc in self.procs.values())
        self._stops.ended(proc.uid)

    def _files_of(self, uid: Uid) -> tuple[str, ...]:
        socket_path = f"{self.directory}/{uid}"
        files = socket_path, door_path(socket_path), self._stacks_path(uid)
        return *files, *stores_beside(socket_path)

    def _end_to_replace(self, uids: Sequence[Uid], order: ReplaceProcs) -> None:
        for uid in uids:
            proc = self.procs[uid]
            proc.spawn = msgspec.structs.replace(proc.spawn, codes=order.codes)
        self.stop(uids, order.grace_seconds, order.reason)

    def _replace(self, old: HostProc, code: int | None) -> None:
        """Make a new proc of the same uid in place of one that has ended."""
        # The new proc starts from the files of now, not from those of the first spawn.
        newest = max(old.spawn.generation, self.workspace.generation)
        spawn = msgspec.structs.replace(old.spawn, generation=newest)
        reason = f"it was replaced ({old.stop_reason})"
        self.watchers.given_way(old, ProcAgain(old.uid, old.label, reason, code == 0))
        self._clear_after(old)
        try:
            self._start(spawn, old.spec, old.setup, old.life + 1)
        except (OSError, ValueError) as error:
            self.never_started(spawn.owner, old.uid, error)
            self._replacements.is_lost(old.uid, f"it could not be started: {error}")

    def _stacks_path(self, uid: Uid) -> str:
        return f"{self.directory}/{uid}.stacks"

    def _tell_client(self, text: str) -> None:
        if self.client is not None:
            self.node.send(self.client, Notice(text))

    def _on_stop(self, order: StopProcs) -> None:

        self.stop(order.uids, order.grace_seconds, order.reason, lambda: self.node.answer(order))

    def stop(
        self,
        uids: Sequence[Uid],
        grace_seconds: float,
        reason: str = "stopped",
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """End procs: first by a request, after ``grace_seconds`` by a kill. ``done`` is called, on
        any thread, when all are gone and their last output was sent."""
        self.waiting.drop(uids)
        self._replacements.cancel(uids)
        self._stops.stop(uids, grace_seconds, reason, lambda: self.logs.after_output(done))

    def _on_inspect(self, order: Inspect) -> None:
        self.node.answer(order, self.describe(packages=order.packages))

    def describe(self, *, packages: bool = False) -> HostState:
        """Return the state of this host, for ``monarch status``; with ``packages`` also its
        installed packages."""
        workspace = self.workspace
        is_there = os.path.isdir(workspace.root)  # else nothing is left of what was pushed
        replica, writes = workspace.replica
        return HostState(
            host=self.name,
            pid=os.getpid(),
            machine=self.node.address.machine,
            uid=self.node.uid,
            workspace=workspace.root,
            state=workspace.state_folder,
            generation=workspace.generation,
            digest=workspace.digest if is_there else "",
            staged_bytes=workspace.staged_bytes,
            replica=replica,
            writes=writes,
            logs=self.logs.directory,
            bulletins=tuple(self.bulletins.standing()),
            procs=tuple(self.proc_state(proc) for proc in self.procs.values()),
            packages=workspace.packages() if packages else None,
        )

    def proc_state(self, proc: HostProc) -> ProcState:
        spawn, spec = proc.spawn, proc.spec
        return ProcState(
            uid=proc.uid,
            label=proc.label,
            name=spawn.name,
            mesh=spawn.mesh,
            rank=spec.rank,
            pid=proc.pid,
            is_up=proc.address is not None,
            hangs=self._hangs.text(proc.uid),
            address=proc.address,
            labels=spawn.labels,
            sizes=spawn.sizes,
            life=proc.life,
        )

    def close(self) -> None:
        """Kill every proc and template. On the loop."""
        for launcher in {*self.templates.all, *(p.launcher for p in self.procs.values())}:
            launcher.close()
        self.logs.close()
        self.procs.clear()
        self.memory.clear()
