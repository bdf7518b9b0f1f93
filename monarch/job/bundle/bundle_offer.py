"""Bundles for hosts that a scheduler starts: a command that needs no monarch, and the delivery.

Over ssh a bundle goes through the login (`login_session.py`). A node or a pod has no login: the
program that is started there waits at the host's port, and this side checks whether one waits.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import socket
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from monarch.errors import JobError
from monarch.job.bundle.bundle import bundle_line, known_bundles
from monarch.net.gateway import Gateway
from monarch.python_start import ALONE
from monarch.runtime.hosts import bundle_place, bundle_seeker
from monarch.runtime.hosts.bundle_seeker import GREETING, proof
from monarch.version import __version__

_CONNECT_SECONDS = 3.0
_SEND_SECONDS = 600.0
_MAX_AT_ONCE = 16

# Any Python must be able to read this, and to say that it is too old.
_BEGIN = (
    f"{ALONE}import zlib,base64;"
    "sys.version_info<(3,10) and sys.exit('it has %s, which is Python %d.%d; Python 3.10 or later "
    "is needed'%((sys.executable,)+tuple(sys.version_info[:2])));"
    "exec(zlib.decompress(base64.b64decode('{text}')).decode())"
)
_PROGRAM = """
import types
def load(name, text):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), vars(module))
    return module
place = load("bundle_place", {place!r})
load("bundle_seeker", {seeker!r}).become_host(
    {task!r}, {port}, {version!r}, {known!r}, place.import_from_bundle
)
"""


def python_arguments(task: str, port: int) -> list[str]:
    """Return the arguments with which a Python runs ``task``, a module of ours, with ``port``.

    A Python without our code waits for a bundle first.
    """
    program = _PROGRAM.format(
        place=_text_of(bundle_place.__file__),
        seeker=_text_of(bundle_seeker.__file__),
        task=task,
        port=port,
        version=__version__,
        known=known_bundles(),
    )
    text = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    return ["-u", "-c", _BEGIN.format(text=text)]


@functools.cache
def _text_of(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


def bring_bundles(urls: Sequence[str], secret: bytes, gateway: Gateway | None) -> list[str]:
    """Send a bundle to each host that waits for one; return the URLs of these hosts.

    Raises ``JobError`` if no bundle fits a host's Python, or the host cannot use it.
    """
    if not urls:
        return []
    with ThreadPoolExecutor(min(len(urls), _MAX_AT_ONCE)) as pool:
        brought = pool.map(lambda url: _bring(url, secret, gateway), urls)
        return [url for url, did in zip(urls, brought, strict=True) if did]


def _bring(url: str, secret: bytes, gateway: Gateway | None) -> bool:
    try:
        with contextlib.closing(_connected(url, gateway)) as host:
            # An agent sends first, too, but ZeroMQ's first byte differs.
            if host.recv(1) != GREETING[:1]:
                return False
            host.settimeout(_SEND_SECONDS)
            with host.makefile("rb") as replies:
                nonce, request = replies.readline().removeprefix(GREETING[1:]).split(b" ", 1)
                text, problem = bundle_line(json.loads(request))
                line = text.encode()
                host.sendall(proof(secret, nonce, line) + b" " + line + b"\n")
                answer = json.loads(replies.readline() or b"{}")
    except (OSError, ValueError):
        return False  # It is not up yet, or has ended; the next request to it shows which.
    if problem or "error" in answer:
        raise JobError(f"the host at {url} cannot be given monarch: {problem or answer['error']}")
    return "done" in answer


def _connected(url: str, gateway: Gateway | None) -> socket.socket:
    if gateway is None:
        parts = urlsplit(url)
        return socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_SECONDS)
    host = socket.socket(socket.AF_UNIX)
    host.settimeout(_CONNECT_SECONDS)
    try:
        host.connect(gateway.way_to(url).removeprefix("ipc://"))
    except OSError:
        host.close()
        raise
    return host
