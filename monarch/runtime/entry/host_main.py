"""A host agent in a process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading

from monarch.config import settings
from monarch.net.gate import adopt, is_loopback
from monarch.runtime.ends.process_group import end_with
from monarch.runtime.hosts.directory import new_directory, remove_directory
from monarch.runtime.hosts.end_notice import EndNotice, grace_seconds, obey_notices
from monarch.runtime.hosts.host_service import HostService
from monarch.runtime.links.secret import take_secret
from monarch.runtime.node import Node
from monarch.runtime.workspace.replica_agent import ReplicaAgent
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys

_log = logging.getLogger("monarch.host")


def serve_host(
    address: str, name: str = "", insecure: bool = False, *, notices: int | None = None
) -> None:
    """Serve as the host agent at ``address`` until a client shuts it down, or SIGTERM comes.

    Without a ``name`` it has the machine's name and the port: a machine may have several agents. If
    the descriptor ``notices`` is given, ends are announced through it, and its writer deals with
    SIGTERM. Without it, SIGUSR1 announces the end: the host continues for ``MONARCH_GRACE_SECONDS``
    (30) at most, and until nothing runs on it.
    """
    url = _adopted(address) or HostUrl.parse(address)
    secret = take_secret()
    if secret is None and not insecure:
        url = _narrowed(url)
    node = Node(url.uid, JobKeys(secret) if secret else None)
    if insecure:
        node.allow_insecure()
    sys.setswitchinterval(settings().switch_interval_seconds)
    directory = new_directory(node.uid)
    # Not an event, whose lock a second signal would wait for that comes while the first holds it.
    over: queue.SimpleQueue[None] = queue.SimpleQueue()
    name = name or _name_at(url)
    workspace = ReplicaAgent(os.environ.get("WORKSPACE_DIR") or f"{directory}/workspace", name)
    service = HostService(node, directory, name, lambda: over.put(None), workspace=workspace)
    if url.bind.startswith("tcp://"):
        service.agent.bind_host = url.bind.removeprefix("tcp://").rpartition(":")[0]
        if service.agent.bind_host != "0.0.0.0":
            service.agent.bind = url.bind
    if notices is not None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which procs would inherit
        obey_notices(notices, service.agent, lambda: over.put(None))
    elif threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: over.put(None))
        obey_notices(_notices_by_signal(), service.agent, lambda: over.put(None))
    try:
        # Last, because a client that was waiting for us asks at once.
        service.open(url)
        _say_ready()
        over.get()
    finally:
        workspace.close()
        service.close()
        remove_directory(directory)


def _notices_by_signal() -> int:
    """Make SIGUSR1 announce the end of this host; return the descriptor to read notices from."""
    reader, writer = os.pipe()
    notice = EndNotice("it is taken away", grace_seconds(), is_last=True)
    line = f"{json.dumps(notice._asdict())}\n".encode()
    signal.signal(signal.SIGUSR1, lambda *_: os.write(writer, line))
    return reader


def _say_ready() -> None:
    """Notify the process that started us, if it left a descriptor for that, that clients may
    connect."""
    fd = os.environ.pop("MONARCH_READY_FD", None)
    if fd is not None:
        with os.fdopen(int(fd), "wb") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(b"1")


_INHERITED = re.compile(r"tcp://([^@]+):fd(\d+)")


def _adopted(address: str) -> HostUrl | None:
    """Listen at an inherited socket that ``address`` names as ``tcp://HOST:fdN``; return its URL.

    The socket may be bound or listening. None if ``address`` has another form.
    """
    match = _INHERITED.fullmatch(address)
    if match is None:
        return None
    listener = socket.socket(fileno=os.dup(int(match[2])))
    listener.listen()  # It may only have been bound before it was handed over.
    host, port = listener.getsockname()[:2]
    url = HostUrl.parse(f"tcp://{match[1]}:{port}@tcp://{host}:{port}")
    adopt(url.bind, listener.detach())
    return url


def _narrowed(url: HostUrl) -> HostUrl:
    """Return the URL to listen at if there is no job secret.

    If clients are told a loopback name, only that is listened at, with a warning; else ``url`` is
    returned.
    """
    beyond = url.bind.startswith("tcp://") and not is_loopback(url.bind)
    if beyond and url.advertise.startswith("tcp://") and is_loopback(url.advertise):
        _log.warning(
            "listening at %s only, not at %s: there is no job secret, and clients are told the "
            "first one. To let other machines in, set MONARCH_JOB_SECRET on both sides",
            url.advertise,
            url.bind,
        )
        return HostUrl(url.advertise, url.advertise)
    return url


def _name_at(url: HostUrl) -> str:
    port = url.advertise.rpartition(":")[2]
    return f"{socket.gethostname()}:{os.path.basename(port)}"


def main() -> None:
    """Serve as a host agent: ``python -m monarch.runtime.entry.host_main ADDRESS [NAME [PARENT]]``.

    It ends with the process ``PARENT``.
    """
    address, name, parent, *_ = (*sys.argv[1:], "", "")
    if parent:
        end_with(int(parent))
    serve_host(address, name)


if __name__ == "__main__":
    main()
