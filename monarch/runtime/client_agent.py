"""The client: the program that owns everything else, with a host agent of its own inside."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from monarch.config import settings
from monarch.core.rings import RingsTold, in_words
from monarch.core.supervision import UnhandledFailure
from monarch.errors import JobError
from monarch.net.guest import invite
from monarch.net.identifiers import new_uid
from monarch.net.io_loop import IoLoop
from monarch.net.machine import machine_id
from monarch.runtime import process
from monarch.runtime.answers import wait_for
from monarch.runtime.ends.end_program import prepare_to_end
from monarch.runtime.ends.unhandled_faults import Lost, UnhandledFaults
from monarch.runtime.links.reachable import way_in
from monarch.runtime.links.secret import take_secret
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.procs.zygote_process import ZygoteProcess, require_linux
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.imported_texts import ImportedTexts
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys
from monarch.wire.message import (
    Bring,
    FlushLogs,
    Inspect,
    InspectProc,
    Log,
    LogRoom,
    LogWindow,
    Notice,
    Order,
    RingFound,
    StopProcs,
    Waiting,
)

if TYPE_CHECKING:
    from monarch.runtime.hosts.host_link import FindProcess, HostLink
    from monarch.runtime.hosts.launcher import StartLauncher

_log = logging.getLogger("monarch.host")
_FLUSH_SECONDS = 1.0

_made_on_demand: dict[str, Callable[[ClientAgent], None]] = {}


def on_demand(name: str, spawn: Callable[[ClientAgent], None]) -> None:
    """Register ``spawn``, which makes an actor with the uid ``<client's uid>.<name>`` in each
    client on the first call to it."""
    _made_on_demand[name] = spawn


class ClientAgent(ProcAgent):
    """The root of the ownership tree.

    ``zygote`` is the first template of its host, which runs already.
    """

    is_root = True

    def __init__(
        self,
        node: Node,
        start_launcher: StartLauncher | None = None,
        zygote: ZygoteProcess | None = None,
    ) -> None:
        # Imported when used: procs import this module too, and have no hosts; and a zygote that
        # runs already imports at the same time.
        from monarch.runtime.dropped_meshes import MeshCollector
        from monarch.runtime.hosts.directory import new_directory
        from monarch.runtime.hosts.host_agent import HostAgent
        from monarch.runtime.hosts.hosted_workspace import NoWorkspace
        from monarch.runtime.hosts.launcher import LauncherAhead
        from monarch.runtime.observe.proc_desk import ProcDesk
        from monarch.runtime.output.log_printer import LogPrinter, follow_cells

        super().__init__(node, node.address)
        #: Has the template process that was started first, until the host agent needs one.
        self.ahead = LauncherAhead(zygote)
        self.at_close.append(self.ahead.close)
        #: The folder of the sockets of this process and its procs.
        self.directory = new_directory(node.uid)
        node.start()
        node.listen(f"ipc://{self.directory}/{node.uid}")
        node.replace_address(host_uid=node.uid, host_urls=node.address.urls)
        self.host = node.address
        self.code_states.is_root = True
        self.host_agent = HostAgent(
            node,
            self.directory,
            workspace=NoWorkspace(lambda: self.generation),
            follows_client=True,
            start_launcher=start_launcher or self.ahead,
        )
        ProcDesk(self)
        #: Ends the meshes of procs that the program has dropped.
        self.collector = MeshCollector(self, settings().collect_dropped_seconds)
        self.printer = LogPrinter(self._printed)
        node.peer_down.on_down.append(lambda uid, down: self.printer.forget(uid))
        self._leave_notebook = follow_cells(self.printer, self.flush_logs)
        #: The attachments to hosts, by URL; lost ones too, until they are made anew.
        self.links: dict[str, HostLink] = {}
        #: What finds the process of a host agent on this machine, by the agent's URL.
        self._find_process: dict[str, FindProcess] = {}
        self.faults = UnhandledFaults(self.printer.flush)
        node.peer_down.on_again.append(lambda again: self.faults.forget(again.uid))
        self.is_closed = False
        #: The texts of the modules that were imported before anything was pushed.
        self._imported = ImportedTexts()
        self._imported.look()
        node.handle(Log, self._on_log)
        node.on(Notice, self._on_notice)
        self.holds = self.host_agent.holds
        self.held_time = self.holds.time
        self.holds.tell = lambda text: _log.warning("%s", text)
        self.holds.on_held = self.clocks_stand
        self._rings_told = RingsTold()
        node.on(RingFound, self._on_ring_found)
        node.on(LogWindow, self._on_log_window)
        node.handle(Order, self._on_first_reload)
        node.handle(Waiting, self._on_first_reload)
        node.handle(Bring, self._on_first_reload)
        for name, spawn in _made_on_demand.items():
            self.on_demand(f"{node.uid}.{name}", functools.partial(spawn, self))

    def remember_imports(self) -> None:
        self._imported.look()

    def imported_texts(self) -> dict[str, bytes]:
        return self._imported.texts()

    def given_workspaces(self) -> list[str]:
        """Return the workspace folders of procs on the host in this process.

        These are the values of ``$WORKSPACE_DIR`` that ``env`` set at the spawn, or that a
        bootstrap has set to another value than in this process. Waits until bootstraps have run,
        for ``reload_timeout_seconds`` at most; a slower proc is left out.
        """
        node, answers = self.node, []
        folders: dict[str, None] = {}
        deadline = time.monotonic() + settings().reload_timeout_seconds
        # A spawn is a message to ourselves: those that were ordered so far come before this one.
        wait_for([node.ask(node.address, Inspect())], settings().reload_timeout_seconds)
        for proc in list(self.host_agent.procs.values()):
            if folder := proc.spec.env.get("WORKSPACE_DIR"):
                folders[folder] = None
            if proc.setup:
                answers.append(node.ask(node.address_of(proc.uid), InspectProc()))
        wait_for(answers, deadline - time.monotonic())
        for answer in answers:
            if answer.is_set and not answer.value.error:
                folder = answer.value.answer.workspace
                if folder and folder != os.environ.get("WORKSPACE_DIR"):
                    folders[folder] = None
        return list(folders)

    def link(self, url: str, *, takeover: bool = False) -> HostLink:
        """Return the link to the host agent at ``url``; make a new link if there is none, or if it
        is lost."""
        from monarch.runtime.hosts.host_link import HostLink

        link = self.links.get(url)
        if link is None or link.is_lost:
            find = self._find_process.get(url)
            process = None if find is None else find()
            link = HostLink(self.node, url, takeover=takeover, process=process)
            self.links[url] = link
            link.ready.on_set(functools.partial(self._attached, link))
            self.supervisor.lives_again(link.address.uid)
            self.faults.forget(link.address.uid)
        return link

    def expect_process(self, url: str, find: FindProcess) -> None:
        """Register ``find``, which finds the process of the host agent at ``url`` on this machine.

        The process may be a different one at each call.
        """
        self._find_process[url] = find

    def relink(self, hosts: Iterable[Uid]) -> None:
        """Attach again to the hosts among ``hosts`` whose links were lost: they may be back."""
        wanted = set(hosts)
        for url, link in dict(self.links).items():
            if link.is_lost and link.address.uid in wanted:
                self.link(url)

    def _attached(self, link: HostLink) -> None:
        """Note the workspace state that an accepted host reports."""
        if link.ready.value is None:
            generation, digest = link.info.generation, link.info.digest
            self.workspaces.found(link.address.uid, generation, digest)
            self.code_states.found(link.address.uid, generation, digest)

    def _on_first_reload(self, envelope: Envelope[Order | Waiting | Bring]) -> None:
        """Take over the first push of another author, if this client has pushed nothing itself.

        This makes the client's workspace session, and passes the message on to it.
        """
        # Imported when used: a program without a workspace need not pay for it.
        from monarch.runtime.workspace.session import session_of

        session_of(self)  # takes over these messages
        self.node.dispatch(envelope)

    def visit(self, url: str) -> ProcAddress:
        """Return the address of a host agent, to ask it questions without becoming its client."""
        host = HostUrl.parse(url)
        address = host.address(machine_id())
        if url not in self.links or self.links[url].is_lost:
            if host.advertise.startswith("tcp://"):
                self.listen_beyond(host.advertise)  # where its answer comes in
            self.node.address_book.expect(address)
            self.node.address_book.peer_up(address)
        return address

    def unlink(self, url: str) -> None:
        """Drop the link to a host whose end is no failure."""
        self._find_process.pop(url, None)
        link = self.links.pop(url, None)
        if link is not None:
            link.give_up()

    def expect_end(self, url: str) -> None:
        """Expect the end of the host at ``url``, which was asked to end: its loss is no failure."""
        link = self.links.get(url)
        if link is not None:
            self.node.peer_down.expect_end(link.address.uid)

    def use_secret(self, secret: bytes) -> None:
        """Use this job's secret for connections from now on."""
        keys = self.node.keys
        if keys is None:
            self.node.use_keys(JobKeys(secret))
        elif keys.secret != secret:
            raise JobError(
                "this program already speaks to another job over TCP; use one job a program, or "
                "end the first one with shutdown_context()"
            )

    def listen_beyond(self, url: str) -> None:
        """Listen at an address that the machine at ``url``, a TCP address, can reach."""
        if any(listening.startswith("tcp://") for listening in self.node.address.urls):
            return
        bind, advertise = way_in(url, self.node.gateway)
        self.host_agent.bind_host = bind.removeprefix("tcp://").rpartition(":")[0]
        self.node.listen(bind, advertise=advertise)

    def _on_log(self, envelope: Envelope[Log]) -> None:
        log = envelope.message
        self.printer.print(log, bytes(envelope.payload))

    def _on_log_window(self, window: LogWindow) -> None:
        self.printer.set_window(window)

    def _printed(self, host: Uid, num_bytes: int) -> None:
        # At the end, the last lines are printed when the network is gone.
        with contextlib.suppress(Exception):
            self.node.send(self.node.address_of(host), LogRoom(num_bytes))

    def flush_logs(self) -> None:
        """Print the output of our procs so far. Takes one second at most, even if hosts hang."""
        flushes = [self.node.ask(self.host, FlushLogs())]
        for link in self.links.values():
            if link.ready.is_set and not link.is_lost:
                flushes.append(self.node.ask(link.address, FlushLogs()))
        wait_for(flushes, _FLUSH_SECONDS)
        self.printer.flush()

    def _on_notice(self, notice: Notice) -> None:
        _log.warning("%s", notice.text)

    def _on_ring_found(self, ring: RingFound) -> None:
        if self._rings_told.is_new(ring.path, self.node.loop.time()):
            _log.warning("%s", in_words(ring.path))

    def fault(self, fault: UnhandledFailure) -> None:
        links = {link.address.uid: link for link in self.links.values()}
        link = links.get(fault.failure.origin)
        is_own_child = link is not None and link.is_own_child
        self.faults.tell(Lost(fault.failure, fault.keys, link is not None, is_own_child))

    def heard_of(self, keys: Collection[str], others: Collection[str] = ()) -> None:
        self.faults.heard(keys, others)

    def close(self, grace_seconds: float | None = None) -> None:
        """Stop our procs and actors, and leave the hosts that we are attached to. Idempotent.

        Actors have ``grace_seconds`` to clean up; the default is the setting
        ``exit_timeout_seconds``.
        """
        grace = settings().exit_timeout_seconds if grace_seconds is None else grace_seconds
        # The closing thread may know of a death that the I/O thread is still reporting.
        with contextlib.suppress(Exception):
            self.node.loop.run_on_loop(lambda: None, timeout=grace)
        self.faults.settle(grace)
        if self.is_closed:
            return
        self.is_closed = True
        self.faults.close()
        self.stop_all(grace)
        with contextlib.suppress(Exception):
            self._end_procs(grace)
        with contextlib.suppress(Exception):
            self._end_distant_procs(grace)
        for link in self.links.values():
            link.detach()
        for close in self.at_close:
            close()
        with contextlib.suppress(Exception):
            self.node.loop.run_on_loop(self.host_agent.close, timeout=3.0)
        self.node.close()
        self._leave_notebook()
        self.printer.close()
        from monarch.runtime.hosts.directory import remove_directory

        remove_directory(self.directory)

    def _end_procs(self, grace_seconds: float) -> None:
        """Let the actors on this machine clean up, and end their procs."""
        ended: Promise[None] = Promise()
        loop, agent = self.node.loop, self.host_agent
        loop.run_on_loop(
            lambda: agent.stop(
                list(agent.procs), grace_seconds, "the client ends", lambda: ended.set(None)
            ),
            timeout=grace_seconds,
        )
        ended.wait(grace_seconds + 1.0)

    def _end_distant_procs(self, grace_seconds: float) -> None:
        """Stop our procs on other hosts, and wait, so that their last output arrives."""
        ends = []
        for link in self.links.values():
            procs = [p for p in self.owned_procs() if p.host_uid == link.address.uid]
            is_there = link.ready.is_set and not link.is_lost
            if procs and is_there and not self.node.peer_down.expects_end(link.address.uid):
                uids = tuple(proc.uid for proc in procs)
                stop = StopProcs(uids, "the client ends", grace_seconds)
                ends.append(self.node.ask(link.address, stop))
        wait_for(ends, grace_seconds + 1.0)


def client() -> ClientAgent:
    """Return the client agent of this program. Raises ``RuntimeError`` inside a proc."""
    agent = process.current()
    if not isinstance(agent, ClientAgent):
        raise RuntimeError("this needs the client program, and runs inside a proc")
    return agent


def _bootstrap(spawns: bool) -> ClientAgent:
    zygote = _zygote() if spawns else None
    sys.setswitchinterval(min(sys.getswitchinterval(), settings().switch_interval_seconds))
    prepare_to_end()
    secret = take_secret()
    loop = IoLoop(lends=True)
    node = Node(new_uid(), JobKeys(secret) if secret else None, loop=loop)
    agent = ClientAgent(node, zygote=zygote)
    if threading.current_thread() is threading.main_thread():
        # The main thread polls for its own answers, so that no other thread has to wake it.
        invite(loop)
    atexit.register(_at_exit, agent)
    return agent


def _zygote() -> ZygoteProcess | None:
    """Start the first template process, which imports what procs need while this process imports
    what hosts need.

    Returns ``None`` where it cannot start; the first spawn then raises the reason.
    """
    with contextlib.suppress(OSError):
        require_linux()
        return ZygoteProcess()
    return None


def _at_exit(agent: ClientAgent) -> None:
    if process.is_bootstrapped() and process.current() is agent:
        agent.close()


process.on_first_use(_bootstrap)
