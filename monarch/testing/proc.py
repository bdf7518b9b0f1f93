"""A proc that lives in the test's process, and the launcher that makes it for a host agent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from monarch.core.mailbox import Lift
from monarch.net.loop import Loop
from monarch.runtime.cells.actor_loops import ActorLoop
from monarch.runtime.entry.bootstrap import come_up, make_agent, mark_output, set_up
from monarch.runtime.hosts.launcher import OnExited, OnForked
from monarch.runtime.node import Node
from monarch.runtime.output.log_stream import label_mark
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.testing.output import route_output
from monarch.testing.script import Script
from monarch.testing.threads import ProcEnded, belonging_to, end_all_of
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Call, SetLogLevel

# Larger than any real pid, so that a signal by mistake hits no process.
ProcTable: TypeAlias = "dict[Uid, InProcessProc]"

_pids = itertools.count(1 << 22)

_ROOM_MILLISECONDS = 20.0
"""How long to wait for room in a full pipe before looking whether the proc has ended."""


class ProcWorld(Protocol):
    """The parts of a world that a proc in it uses."""

    script: Script
    procs: ProcTable

    def new_node(self, uid: Uid, machine: str) -> Node: ...

    def new_event_loop(self) -> asyncio.AbstractEventLoop: ...


class InProcessAgent(ProcAgent):
    """The real agent, whose async actors run on a loop of the world's kind."""

    world: ProcWorld

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.node.handle(Call, self._take_scripted, on_any_thread=True)

    _loop: asyncio.AbstractEventLoop | None = None

    def actor_loop(self, name: str) -> ActorLoop:
        return ActorLoop(self.asyncio_loop(), lambda: None)

    def asyncio_loop(self) -> asyncio.AbstractEventLoop:
        """Return the proc's only asyncio loop, so that the world's clock knows when it is idle."""
        with self._lock:
            if self._loop is None:
                self._loop = self.world.new_event_loop()
                threading.Thread(
                    target=_run_and_close, args=(self._loop,), name="monarch-asyncio", daemon=True
                ).start()
            return self._loop

    def _take_scripted(self, envelope: Envelope[Call]) -> None:
        route_output()
        self._cells.take_call(self.world.script.applied(self.node.uid, envelope))

    def drop_everything(self) -> None:
        """End all actors as the death of their process would: without a message."""
        for cell in self.cells:
            cell.is_ended = True
            cell.deliver(Lift(-1))  # Wakes it, and means nothing else.
        self.stop_loop()

    def stop_loop(self) -> None:
        """End the thread on which async actors run."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)


def _run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class InProcessProc:
    """One proc: a node, an agent and their threads. ``exited`` is called once, when it ends."""

    def __init__(
        self,
        config: ProcConfig,
        machine: str,
        world: ProcWorld,
        output: dict[int, int],
        *,
        exited: Callable[[int], None],
        setup: bytes = b"",
    ) -> None:
        self.uid = config.uid
        self.pid = next(_pids)
        #: What `os.environ` is on the proc's threads.
        self.environment = _changed(os.environ, config.env)
        self._exited = exited
        self._world = world
        for fd in output.values():
            os.set_blocking(fd, False)
        #: The pipes to the host agent, by stream (1 or 2); empty once the proc has ended.
        self._output = output
        #: Guards `_output` and `_has_ended`; never held for longer than a system call.
        self._lock = threading.Lock()
        self._has_ended = False
        #: Set once the end is complete and has been reported.
        self.ended = threading.Event()
        with belonging_to(self):
            self.node = world.new_node(config.uid, machine)
            agent = make_agent(config, self.node, lambda: self.end(0), InProcessAgent)
            assert isinstance(agent, InProcessAgent)
            agent.world = world
            self.agent = agent
            mark_output(agent, self._mark)
            self.node.handle(SetLogLevel, self._keep_log_level)
            world.procs[self.uid] = self
            if setup:
                threading.Thread(target=self._set_up, args=(config, setup), daemon=True).start()
            else:
                self._come_up(config)

    def _come_up(self, config: ProcConfig, prepare: Callable[[], None] = lambda: None) -> None:
        try:
            come_up(config, self.node, self.pid, prepare)
        except RuntimeError:
            if not self._has_ended:
                raise  # Otherwise it was killed meanwhile, which is reported as its end.

    def _set_up(self, config: ProcConfig, setup: bytes) -> None:
        loop = self.agent.asyncio_loop()

        def run(coroutine: Coroutine[Any, Any, None]) -> None:
            asyncio.run_coroutine_threadsafe(coroutine, loop).result()

        self._come_up(config, lambda: set_up(setup, config, self.agent, run))

    def end(self, code: int) -> None:
        """End with a status, or by the signal ``-code``. Any thread may call it, more than once.

        The network is closed first: messages that actors still send reach no receiver.
        """
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self.node.close()
        self.agent.drop_everything()
        end_all_of(self)
        self._close_output()
        self._world.procs.pop(self.uid, None)
        self._exited(code)
        self.ended.set()

    def write(self, stream: int, text: str) -> None:
        """Print to the proc's stdout (1) or stderr (2). Waits while the pipe is full, as usual."""
        self._write(stream, text.encode("utf-8", "replace"))

    def _mark(self, label: str) -> None:
        with contextlib.suppress(ProcEnded):
            for stream in (1, 2):
                self._write(stream, label_mark(label))

    def _keep_log_level(self, envelope: Envelope[SetLogLevel]) -> None:
        # The log level of the test's process would change for all procs.
        order = envelope.message
        self.node.answer(order)

    def _write(self, stream: int, data: bytes) -> None:
        poll = select.poll()
        while data:
            # The thread that prints may be unwound between any two steps. So it owes nothing but
            # the lock, which `with` returns at any moment, and holds that for no longer than a
            # system call.
            with self._lock:
                fd = self._output.get(stream)
                if fd is None:
                    return
                try:
                    data = data[os.write(fd, data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    raise ProcEnded from None  # The reader has left, because we have ended.
            if data:
                # If we end meanwhile, the number may be another file's: then this is a short wait.
                poll.register(fd, select.POLLOUT)
                poll.poll(_ROOM_MILLISECONDS)

    def _close_output(self) -> None:
        with self._lock:
            output, self._output = self._output, {}
            for fd in output.values():
                os.close(fd)


def _changed(environment: Mapping[str, str], by: Mapping[str, str | None]) -> dict[str, str]:
    changed = {**environment, **by}
    return {name: value for name, value in changed.items() if value is not None}


class InProcessLauncher:
    """Makes procs for one host agent, instead of the zygote."""

    def __init__(
        self,
        loop: Loop,
        on_forked: OnForked,
        on_exited: OnExited,
        machine: str,
        *,
        world: ProcWorld,
    ) -> None:
        self._loop = loop
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._machine = machine
        self._world = world
        self._procs: dict[Uid, InProcessProc] = {}
        self.is_alive = True

    def drift(self) -> dict[str, str | None]:
        """Return no differences: the environment of these procs is the test's current one."""
        return {}

    def fork(self, config: ProcConfig, out: int, err: int, setup: bytes = b"") -> None:
        def exited(code: int) -> None:
            self._loop.call_soon(lambda: self._ended(config.uid, code))

        if not self.is_alive:
            raise OSError("this host has ended")
        output = {1: os.dup(out), 2: os.dup(err)}
        proc = InProcessProc(config, self._machine, self._world, output, exited=exited, setup=setup)
        self._procs[config.uid] = proc
        self._loop.call_soon(lambda: self._on_forked(config.uid, proc.pid, 0))

    def _ended(self, uid: Uid, code: int) -> None:
        if self._procs.pop(uid, None) is not None:
            self._on_exited(uid, code)

    def preload(
        self, modules: Sequence[str], done: Callable[[dict[str, str]], None] | None = None
    ) -> None:
        errors = {}
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
        if done is not None:
            self._loop.call_soon(lambda: done(errors))

    def learn(self, modules: Sequence[str], done: Callable[[dict[str, str]], None]) -> None:
        self.preload(modules, done)

    def kill(self, uid: Uid) -> None:
        proc = self._procs.get(uid)
        if proc is not None:
            proc.end(-signal.SIGKILL)

    def close(self) -> None:
        """End every proc without a report, as when a host goes down."""
        self.is_alive = False
        procs, self._procs = self._procs, {}
        for proc in procs.values():
            proc.end(-signal.SIGKILL)
