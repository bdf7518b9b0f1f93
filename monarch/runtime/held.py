"""Finds the references of a process to procs, and whether the user's code runs there outside of
calls.

References are searched for among all objects of the interpreter, only on request: so nothing is
counted while programs run. Types whose objects refer to procs are registered by ``refers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monarch.version import OUR_FOLDER
from monarch.wire.codec import Envelope

_IDLE_POOL = os.path.join("concurrent", "futures", "thread.py")
_LISTENS = "0A"
_HELPERS = (
    b"torch_shm_manager",
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
)

_referrers: dict[type, Callable[[Any], Iterable[str]]] = {}


def refers(kind: type, procs: Callable[[Any], Iterable[str]]) -> None:
    """Register a type; ``procs`` returns the uids of the procs that an object of exactly this type
    refers to."""
    _referrers[kind] = procs


def held_among(procs: Collection[str]) -> set[str]:
    """Return the procs among ``procs`` that an object of this process refers to.

    A message that waits here is searched for their uids: what it holds is not unpickled yet.
    """
    wanted = set(procs)
    held: set[str] = set()
    for item in _objects_of([*_referrers, Envelope]):
        if isinstance(item, Envelope):
            with contextlib.suppress(ValueError):  # It was unpickled, and its memory is released.
                pickled = bytes(item.payload)
                held.update(uid for uid in wanted if uid.encode() in pickled)
        else:
            with contextlib.suppress(AttributeError):  # It is being made.
                held.update(wanted.intersection(_referrers[type(item)](item)))
    return held


def _objects_of(kinds: Collection[type]) -> list[Any]:
    # Imported at the first look, because it takes a moment and most programs drop no mesh.
    from monarch_reload.live.all_objects import objects_of

    return objects_of(kinds)


def _objects_below(kind: type) -> list[Any]:
    """Return all objects of a class and of its subclasses."""
    from monarch_reload.live.all_objects import with_subclasses

    return _objects_of(with_subclasses(kind))


def runs_by_itself(owns_procs: bool, urls: Iterable[str]) -> str:
    """Return what runs in this process outside of calls, as text; "" if nothing does. ``urls`` are
    the addresses that the process itself listens at.
    """
    if owns_procs:
        return "it has procs of its own"
    if name := _own_task():
        return f"an asyncio task of {name}"
    if name := _own_thread():
        return f"a thread, {name}"
    if _has_children():
        return "processes that it has started"
    if _is_listening(urls):
        return "an open port"
    return ""


def _own_task() -> str:
    for task in _objects_below(asyncio.Task):
        if not task.done():
            code = getattr(task.get_coro(), "cr_code", None)
            if code is not None and not code.co_filename.startswith(OUR_FOLDER):
                return str(code.co_qualname if sys.version_info >= (3, 11) else code.co_name)
    return ""


def _own_thread() -> str:
    frames = sys._current_frames()
    main = threading.main_thread()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread is main or frame is None:
            continue
        if frame.f_code.co_filename.endswith(_IDLE_POOL):
            continue  # a worker of a pool that waits for work
        files = []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        if not any(file.startswith(OUR_FOLDER) for file in files):
            return thread.name
    return ""


def _has_children() -> bool:
    try:
        return any(
            not _is_helper(pid)
            for task in Path("/proc/self/task").iterdir()
            for pid in Path(task, "children").read_text().split()
        )
    except OSError:
        return False


def _is_helper(pid: str) -> bool:
    """Return whether a child process only cleans up shared memory, and ends with its parent.

    Torch and ``multiprocessing`` start such processes.
    """
    with contextlib.suppress(OSError):
        words = Path("/proc", pid, "cmdline").read_bytes()
        return any(helper in words for helper in _HELPERS)
    return False


own_ports: set[int] = set()
"""Ports of this process at which others read memory. They do not count as the user's: whoever reads
holds a reference, which counts by itself."""


def _is_listening(urls: Iterable[str]) -> bool:
    """Return whether this process listens on a port that user code opened.

    Once torch.distributed is imported, only sockets of Python count: the ports of its stores and
    backends stay open when a process group has ended, and they serve collectives, which are calls.
    """
    ours = {urlsplit(url).port for url in urls if url.startswith("tcp:")}
    listening: set[str] = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                words = line.split()
                port = int(words[1].rpartition(":")[2], 16)
                if words[3] == _LISTENS and port not in ours and port not in own_ports:
                    listening.add(f"socket:[{words[9]}]")
    if not listening:
        return False
    fds = _python_sockets() if "torch.distributed" in sys.modules else os.listdir("/proc/self/fd")
    for fd in fds:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") in listening:
                return True
    return False


def _python_sockets() -> list[int]:
    return [opened.fileno() for opened in _objects_below(socket.socket)]
