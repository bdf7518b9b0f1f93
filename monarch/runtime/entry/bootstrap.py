"""The life of a proc, from the fork to the exit."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import faulthandler
import inspect
import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec

from monarch.config import inherit_config, settings
from monarch.errors import format_remote
from monarch.net.io_loop import IoLoop
from monarch.net.lent_selector import LentSelector
from monarch.runtime import process
from monarch.runtime.context import ActorRecord, Running, running
from monarch.runtime.debugger.door import ObserveDoor
from monarch.runtime.ends.stacks import offer_stacks
from monarch.runtime.entry.learned_modules import begin_as_fresh
from monarch.runtime.node import Node
from monarch.runtime.observe.flight_record import BUFFER_VARIABLE
from monarch.runtime.observe.proc_desk import ProcDesk
from monarch.runtime.output.labels import Labels, label_of
from monarch.runtime.procs.binding import bind_process
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.runtime.procs.seen_imports import SeenImports
from monarch.runtime.workspace.project_roots import project_roots
from monarch.runtime.workspace.session import open_session
from monarch.wire import payload
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys
from monarch.wire.message import Imported, ProcUp, SetLogLevel, SpawnActor, StopSelf


def run_proc(config: ProcConfig, setup: bytes = b"") -> None:
    """Run a proc until it is told to stop, on the process's main thread.

    ``setup`` is a pickled function; it runs before any other code of the user.
    """
    _settle_in(config)
    begin_as_fresh()
    seen = SeenImports(lambda modules: node.send(config.host, Imported(config.uid, modules)))
    io = IoLoop(lends=True)
    io.on_broken = _end_at_once
    loop = asyncio.SelectorEventLoop(LentSelector(io, lambda: agent.loops.is_main_taken))
    asyncio.set_event_loop(loop)
    keys = JobKeys(bytes.fromhex(config.secret)) if config.secret else None
    node = Node(config.uid, keys, loop=io, life=config.life)
    if config.insecure:
        node.allow_insecure()

    def stop() -> None:
        if settings().learn_imports:
            with contextlib.suppress(Exception):
                io.run_on_loop(lambda: seen.look(is_last=True), timeout=1.0)
        loop.call_soon_threadsafe(loop.stop)

    agent = make_agent(config, node, stop)
    agent.loops.use_main(loop)
    agent.io_loop = io
    process.install(agent)
    roots = [*config.workspace_path, *project_roots(config.path)]
    open_session(agent, roots, f"{config.name} {config.rank}")
    outputs = [os.dup(1), os.dup(2)]  # Actors may redirect theirs; these stay.
    labels = Labels(outputs)
    mark_output(agent, labels.mark, labels.expect)
    labels.follow()
    _follow_log_level(agent, config)
    faulthandler.enable(sys.stderr, all_threads=False)
    door = ObserveDoor(agent, config)
    door.open()
    agent.at_stop.append(door.close)
    offer_stacks(f"{config.listen[0].removeprefix('ipc://')}.stacks")
    come_up(
        config,
        node,
        os.getpid(),
        lambda: set_up(setup, config, agent, loop.run_until_complete) if setup else None,
    )
    if settings().learn_imports:
        seen.look_on(io)
    loop.run_forever()
    node.close()


def _end_at_once(error: Exception) -> None:
    """End a process that is cut off from all others: if it stayed, it would seem alive."""
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
        sys.stderr.write(
            "This process cannot speak to others any more, and ends. Has code here closed "
            "descriptors that are not its own, as os.closerange does?\n"
        )
        sys.stderr.flush()
    os._exit(1)


def make_agent(
    config: ProcConfig,
    node: Node,
    stop: Callable[[], object],
    kind: type[ProcAgent] = ProcAgent,
) -> ProcAgent:
    """Make the agent of the proc that ``config`` describes; ``stop`` ends the proc after the
    cleanups."""
    node.replace_address(host_uid=config.host.uid, host_urls=config.host.urls)
    agent = kind(node, config.host)
    agent.use_root(config.root or config.owner)
    agent.command = config.command
    agent.generation = config.generation
    agent.code_states.inherit(config.codes)
    desk = ProcDesk(agent)

    def end() -> None:
        desk.leave_rows(config.host)
        stop()

    node.on(StopSelf, lambda stop: _stop_in_background(agent, end))
    return agent


def set_up(
    setup: bytes,
    config: ProcConfig,
    agent: ProcAgent,
    run: Callable[[Coroutine[Any, Any, None]], object],
) -> None:
    """Run the user's bootstrap function, as an actor of this rank would.

    If it raises, no actor can be made in this proc.
    """
    record = ActorRecord(
        uid=config.uid,
        name="setup",
        class_name="bootstrap",
        rank=config.rank,
        labels=config.labels,
        sizes=config.sizes,
        owner=config.owner,
        owner_actor=config.owner_actor,
    )
    setup_run = Running(record, None, config.rank, config.labels, config.sizes)
    data, *buffers = msgspec.msgpack.decode(setup, type=list[bytes])
    with agent.only_own_actors():
        try:
            run(_run_setup(payload.load(data, buffers), setup_run))
        except BaseException as error:
            traceback.print_exc()
            agent.spoiled = f"the bootstrap of its proc failed.\n{format_remote(error)}"


async def _run_setup(function: Callable[[], Any], setup_run: Running) -> None:
    """Run a plain function on a thread, so that async actors that it spawns and calls can
    answer."""
    running.set(setup_run)
    if inspect.iscoroutinefunction(function):
        await function()
        return
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(thread, context.run, function)
    if inspect.isawaitable(result):
        await result


def come_up(
    config: ProcConfig, node: Node, pid: int, prepare: Callable[[], None] = lambda: None
) -> None:
    """Listen, call ``prepare``, and notify the owner and the host agent."""
    node.start()
    for url in map(HostUrl.parse, config.listen):
        node.listen(url.bind, advertise=url.advertise)
    if config.host_bind:
        # A machine often resolves its own name to another address than others do: 127.0.1.1.
        for host_url in config.host.urls:
            if host_url.startswith("tcp://"):
                node.reach_at(host_url, config.host_bind)
    prepare()
    up = ProcUp(node.address, pid)
    node.send(config.host, up)
    if config.owner.uid != config.host.uid and not config.is_quiet:
        node.send(config.owner, up)


def _stop_in_background(agent: ProcAgent, stop: Callable[[], object]) -> None:
    """Let the actors clean up, on their threads and on the loop, and then end the proc."""

    def run() -> None:
        for close in agent.at_stop:
            close()
        agent.stop_all(settings().cleanup_timeout_seconds)
        stop()

    threading.Thread(target=run, name="monarch-stop", daemon=True).start()


def _settle_in(config: ProcConfig) -> None:
    """Replace the state of the template that this proc was forked from by the proc's own.

    That is: settings, environment variables, working folder, ``sys.path``, CPU binding and streams.
    """
    if config.bind:
        bind_process(config.bind)
    inherit_config(config.config)
    for name, value in config.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Torch remembers its last collectives, at no cost, for `monarch hang`.
    os.environ.setdefault(BUFFER_VARIABLE, "2000")
    if config.workspace:
        os.environ["WORKSPACE_DIR"] = config.workspace
    if config.directory:
        with contextlib.suppress(OSError):
            os.chdir(config.directory)
    present = set(sys.path)
    sys.path[:0] = [path for path in config.workspace_path if path not in present]
    sys.path += [path for path in config.path if path not in present]
    sys.argv = [f"monarch-proc-{config.name}-{config.rank}"]
    for stream in (sys.stdout, sys.stderr):
        # A pipe would be block-buffered, and the last lines before a crash lost.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.setswitchinterval(settings().switch_interval_seconds)


_WATCHES_OTHERS = "monarch.runs."  # where classes of actors that print nothing are defined


def mark_output(
    agent: ProcAgent,
    mark: Callable[[str], object],
    expect: Callable[[Uid, str], object] = lambda uid, label: None,
) -> None:
    """Have each new actor's label written to the output before the actor can print, by ``mark``;
    pass its uid and label to ``expect``."""

    def spawned(envelope: Envelope[SpawnActor]) -> None:
        spawn = envelope.message
        if not spawn.class_name.startswith(_WATCHES_OTHERS):
            label = label_of(spawn.name, spawn.rank, math.prod(spawn.sizes))
            mark(label)
            expect(spawn.actor, label)
        agent.on_spawn(envelope)

    agent.node.handle(SpawnActor, spawned, on_any_thread=True)


def _follow_log_level(agent: ProcAgent, config: ProcConfig) -> None:
    """Print Python's own log records from INFO on, unless the program sets another level."""
    # The handler that prints as long as the program has not set up handlers of its own.
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.NOTSET)
    logging.getLogger().setLevel(config.log_level)

    def set_level(order: SetLogLevel) -> None:
        logging.getLogger().setLevel(order.level)
        agent.node.answer(order)

    agent.node.on(SetLogLevel, set_level)


def exit_quietly(code: int) -> NoReturn:
    """Run exit handlers and finalizers, flush, and leave without tearing the interpreter down.

    With torch loaded, an ordinary teardown takes longer than all the rest of stopping.
    """
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        _let_go()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _let_go() -> None:
    """Drop objects with a finalizer from the user's own modules, as a teardown would."""
    installed = (sys.prefix + os.sep, sys.base_prefix + os.sep)
    for module in sys.modules.copy().values():
        path = getattr(module, "__file__", None) or ""
        if path.startswith(installed) or f"{os.sep}site-packages{os.sep}" in path:
            continue
        for name, value in dict(vars(module)).items():
            if hasattr(type(value), "__del__"):
                setattr(module, name, None)
