"""The life of a proc, from the fork to the exit."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

from monarch.config import settings
from monarch.runtime import process
from monarch.runtime.node import Node
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.proc_config import ProcConfig
from monarch.runtime.workspace.reload_agent import project_roots
from monarch.runtime.workspace.session import open_session
from monarch.wire.codec import Envelope
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys
from monarch.wire.message import Label, ProcUp, SpawnActor, StopSelf

__all__ = ["exit_quietly", "run_proc"]


def run_proc(config: ProcConfig) -> None:
    """Be a proc until told to stop. Runs on the process's main thread."""
    _settle_in(config)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    node = Node(config.uid, JobKeys(bytes.fromhex(config.secret)) if config.secret else None)
    node.replace_address(host_uid=config.host.uid, host_urls=config.host.urls)
    agent = ProcAgent(node, config.host)
    agent.use_loop(loop)
    agent.generation = config.generation
    process.install(agent)
    roots = [*config.workspace_path, *project_roots(config.path)]
    open_session(agent, roots, f"{config.name} {config.rank}")
    node.handle(StopSelf, lambda envelope: _stop_in_background(agent, loop))
    _announce_label(agent, config)
    node.start()
    for url in map(HostUrl.parse, config.listen):
        node.listen(url.bind, advertise=url.advertise)
    up = ProcUp(node.address, os.getpid())
    node.send(config.owner, up)
    if config.owner.uid != config.host.uid:
        node.send(config.host, up)
    loop.run_forever()
    node.close()


def _stop_in_background(agent: ProcAgent, loop: asyncio.AbstractEventLoop) -> None:
    """Let the actors clean up, on their threads and on the loop, and then end the loop."""

    def stop() -> None:
        agent.stop_all(settings().cleanup_timeout_seconds)
        loop.call_soon_threadsafe(loop.stop)

    threading.Thread(target=stop, name="monarch-stop", daemon=True).start()


def _settle_in(config: ProcConfig) -> None:
    """Make the template's surroundings this proc's own."""
    for name, value in config.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if config.workspace:
        os.environ["WORKSPACE_DIR"] = config.workspace
    if config.directory:
        with contextlib.suppress(OSError):
            os.chdir(config.directory)
    known = set(sys.path)
    sys.path[:0] = [path for path in config.workspace_path if path not in known]
    sys.path += [path for path in config.path if path not in known]
    sys.argv = [f"monarch-proc-{config.name}-{config.rank}"]
    for stream in (sys.stdout, sys.stderr):
        # A pipe would be block-buffered, and the last lines before a crash lost.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.setswitchinterval(settings().switch_interval_seconds)


def _announce_label(agent: ProcAgent, config: ProcConfig) -> None:
    """Tell the host agent which actor lives here, so that log lines can say so."""

    def spawned(envelope: Envelope) -> None:
        assert isinstance(envelope.message, SpawnActor)
        label = f"{envelope.message.name} {envelope.message.rank}"
        agent.node.send(config.host, Label(config.uid, label))
        agent.on_spawn(envelope)

    agent.node.handle(SpawnActor, spawned, on_any_thread=True)


def exit_quietly(code: int) -> NoReturn:
    """Run exit handlers, flush, and leave without tearing the interpreter down.

    With torch loaded, an ordinary teardown takes longer than all the rest of stopping.
    """
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
