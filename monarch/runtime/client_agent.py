"""The client: the program that owns everything else, with a host agent of its own inside."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit

from monarch.config import settings
from monarch.errors import JobError, MeshFailure
from monarch.runtime import process
from monarch.runtime.directory import new_directory
from monarch.runtime.host_agent import HostAgent
from monarch.runtime.host_link import HostLink
from monarch.runtime.log_printer import LogPrinter
from monarch.runtime.node import Node
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.secret import take_secret
from monarch.wire.address import ProcAddress, new_uid
from monarch.wire.codec import Envelope
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys
from monarch.wire.message import Log, Prepare, Revert, Switch

__all__ = ["ClientAgent", "client", "set_fault_hook_source"]


FaultHook = Callable[[MeshFailure], object]


def _no_hook() -> FaultHook:
    return lambda failure: sys.exit(1)


_fault_hook: Callable[[], FaultHook] = _no_hook


def set_fault_hook_source(source: Callable[[], FaultHook]) -> None:
    """Where to look up the hook for unhandled faults, at the moment when one arrives."""
    global _fault_hook
    _fault_hook = source


class ClientAgent(ProcAgent):
    """The root of the ownership tree."""

    def __init__(self, keys: JobKeys | None = None) -> None:
        node = Node(new_uid(), keys)
        super().__init__(node, node.address)
        self.directory = new_directory(node.uid)
        node.start()
        node.listen(f"ipc://{self.directory}/{node.uid}")
        node.replace_address(host_uid=node.uid, host_urls=node.address.urls)
        self.host = node.address
        self.host_agent = HostAgent(node, self.directory)
        self.host_agent.follows_client = True
        self.printer = LogPrinter()
        self.links: dict[str, HostLink] = {}
        self.has_faulted = False
        self._is_closed = False
        node.handle(Log, self._on_log)
        for kind in (Prepare, Switch, Revert):
            node.handle(kind, self._on_first_reload)
        self.host_agent.generation = lambda: self.generation

    @property
    def is_root(self) -> bool:
        return True

    def link(self, url: str, *, takeover: bool = False) -> HostLink:
        """The tie to the host agent at ``url``, made when there is none that stands."""
        link = self.links.get(url)
        if link is None or link.is_lost:
            link = self.links[url] = HostLink(self.node, url, takeover=takeover)
        return link

    def _on_first_reload(self, envelope: Envelope) -> None:
        """Somebody pushed code for what we run, before we did ourselves."""
        # Imported when used: a program without a workspace need not pay for it.
        from monarch.runtime.workspace.session import session_of

        session_of(self)  # takes over these messages
        self.node.dispatch(envelope)

    def visit(self, url: str) -> ProcAddress:
        """The address of a host agent, to ask it things without becoming its client."""
        address = HostUrl.parse(url).address()
        if url not in self.links:
            self.node.expect(address)
            self.node.peer_up(address)
        return address

    def unlink(self, url: str) -> None:
        """Forget the tie to a host whose end is no failure."""
        link = self.links.pop(url, None)
        if link is not None:
            link.give_up()

    def expect_end(self, url: str) -> None:
        """The host at ``url`` was asked to end: that it is lost then is no failure."""
        link = self.links.get(url)
        if link is not None:
            link.is_ending = True

    def use_secret(self, secret: bytes) -> None:
        """Speak as a member of the job that has this secret."""
        keys = self.node.keys
        if keys is None:
            self.node.use_keys(JobKeys(secret))
        elif keys.secret != secret:
            raise JobError(
                "this program already speaks to another job over TCP; use one job a program, or "
                "end the first one with shutdown_context()"
            )

    def listen_beyond(self, url: str) -> None:
        """Be reachable from the machine at ``url``, a TCP address."""
        if not any(known.startswith("tcp://") for known in self.node.address.urls):
            self.host_agent.bind_host = _address_towards(url)
            self.node.listen(f"tcp://{self.host_agent.bind_host}:0")

    def _on_log(self, envelope: Envelope) -> None:
        log = envelope.message
        assert isinstance(log, Log)
        self.printer.print(log.label, log.stream, log.lines)

    def fault(self, failure: MeshFailure) -> None:
        """Nobody handled it: ask the program's hook, on a thread of its own."""
        threading.Thread(target=self._fault, args=(failure,), name="monarch-fault").start()

    def _fault(self, failure: MeshFailure) -> None:
        try:
            _fault_hook()(failure)
        except BaseException as error:
            with self._lock:
                # The program is about to end: one report, for the first cause.
                is_first = not self.has_faulted and not self._is_closed
                self.has_faulted = self.has_faulted or is_first
            if not is_first:
                return
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            self.printer.flush()
            sys.stderr.write(
                f"Unhandled monarch error on the root actor, hostname={socket.gethostname()}, "
                f"PID={os.getpid()} at time {when}:\n{failure.report()}\n"
            )
            if not isinstance(error, SystemExit):
                traceback.print_exception(error)
            sys.stderr.flush()
            # A real signal, because only that wakes a main thread that waits for a lock.
            main = threading.main_thread()
            if main.is_alive() and main.ident is not None:
                signal.pthread_kill(main.ident, signal.SIGINT)

    def close(self) -> None:
        """Stop what we run here, leave the hosts we are attached to. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        grace = settings().exit_timeout_seconds
        self.stop_all(grace)
        with contextlib.suppress(Exception):
            self._end_procs(grace)
        for link in self.links.values():
            link.detach()
        with contextlib.suppress(Exception):
            self.node.loop.run_on_loop(self.host_agent.close, timeout=3.0)
        self.node.close()
        self.printer.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

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


def _address_towards(url: str) -> str:
    """The address of this machine that the machine at ``url`` sees."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only picks the way out.
        probe.connect((parts.hostname or "localhost", parts.port or 9))
        address: str = probe.getsockname()[0]
    return address


def client() -> ClientAgent:
    """The client agent of this program. Raises ``RuntimeError`` inside a proc."""
    agent = process.current()
    if not isinstance(agent, ClientAgent):
        raise RuntimeError("this needs the client program, and runs inside a proc")
    return agent


def _bootstrap() -> ClientAgent:
    sys.setswitchinterval(min(sys.getswitchinterval(), settings().switch_interval_seconds))
    secret = take_secret()
    agent = ClientAgent(JobKeys(secret) if secret else None)
    atexit.register(_at_exit, agent)
    return agent


def _at_exit(agent: ClientAgent) -> None:
    if process.is_bootstrapped() and process.current() is agent:
        agent.close()
    if agent.has_faulted:
        # The interpreter would end by SIGINT otherwise, and say 130 instead of 1.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(1)


process.on_first_use(_bootstrap)
