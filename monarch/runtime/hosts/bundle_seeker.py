"""Started by a scheduler on a host that may have no monarch: waits at the host's port for a bundle.

It listens at the future address of the host agent, tells its kind of Python, and accepts a bundle
from any client that has the job's secret; then it becomes the agent. Needs Python 3.10, and only
the standard library: its text is part of the command (``monarch/job/bundle/bundle_offer.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import queue
import re
import runpy
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

GREETING = b"monarch-bundle "
_MAX_BYTES = 1 << 29
_SECONDS = 60.0
_MAX_AT_ONCE = 16

Import = Callable[[Mapping[str, str], Callable[[Mapping[str, Any]], None], Callable[[], str]], Any]


def become_host(
    module: str, port: int, version: str, known: Mapping[str, str], import_from_bundle: Import
) -> None:
    """Run our module ``module`` with ``port``, once monarch can be imported here in ``version``.

    If it is not installed, it is imported from a bundle; without a bundle the program exits with
    status 1. ``known`` has the digests of bundles by the kind of Python.
    """
    if not _has_ours(version):
        with _Door(port) as door:
            if import_from_bundle(known, door.tell, door.read) is None:
                sys.exit(1)
            door.tell({"done": True})
        _pass_on(os.environ["MONARCH_BUNDLE"])
    sys.argv = [module, str(port)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _has_ours(version: str) -> bool:
    # Python imports from the folder that it was started in: a checkout there does not count.
    sys.path[:] = [path for path in sys.path if path]
    try:
        import monarch

        return bool(monarch.__version__ == version)
    except ImportError:
        return False


def _pass_on(bundle: str) -> None:
    """Have processes that are started from here import from the bundle, too."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([bundle, *others])
    if os.path.exists("monarch"):
        # Python imports from where it is started before all else: a checkout there would hide it.
        os.chdir(bundle)


class _Door:
    """The listener at which a client brings the bundle.

    It opens at the first ``tell``.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener: socket.socket | None = None
        #: The client that has brought the bundle; None until then.
        self._visitor: socket.socket | None = None
        #: The bundle that is needed, as JSON.
        self._wish = b""
        #: Clients that have proved that they know the secret, each with its line.
        self._brought: queue.SimpleQueue[tuple[socket.socket, str]] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MAX_AT_ONCE)

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listener, self._visitor):
            if connection is not None:
                connection.close()

    def tell(self, news: Mapping[str, Any]) -> None:
        """Tell clients that a bundle is needed, or how it went. An error is also printed."""
        if "bundle" in news:
            self._wish = json.dumps(news["bundle"]).encode()
            return
        if "error" in news:
            sys.stderr.write(f"{news['error']}\n")
        if self._visitor is not None:
            with contextlib.suppress(OSError):
                self._visitor.sendall(json.dumps(news).encode() + b"\n")

    def read(self) -> str:
        """Wait for a client that knows the secret; return its line, which brings the bundle.

        "" at the second call, because there is only one such line.
        """
        if self._visitor is not None:
            return ""
        address = _own_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, self._port), family=family, backlog=64)
        self._listener = listener
        threading.Thread(target=self._receive, args=(listener,), daemon=True).start()
        self._visitor, line = self._brought.get()
        listener.close()
        self._listener = None
        return line

    def _receive(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # The listener is closed when a client has come.
            while self._room.acquire():
                visitor, _ = listener.accept()
                threading.Thread(target=self._hear, args=(visitor,), daemon=True).start()

    def _hear(self, visitor: socket.socket) -> None:
        is_kept = False
        try:
            visitor.settimeout(_SECONDS)
            nonce = secrets.token_hex(16).encode()
            visitor.sendall(GREETING + nonce + b" " + self._wish + b"\n")
            with visitor.makefile("rb") as file:
                proved = file.readline(_MAX_BYTES)
            mac, _, line = proved.strip().partition(b" ")
            if hmac.compare_digest(mac, proof(_secret(), nonce, line)):
                is_kept = True
                self._brought.put((visitor, line.decode()))
        except (OSError, ValueError):
            pass
        finally:
            self._room.release()
            if not is_kept:
                visitor.close()


def proof(secret: bytes, nonce: bytes, line: bytes) -> bytes:
    """Return the proof that is sent with ``line``. Only a process that knows the job's ``secret``
    and was sent the ``nonce`` can make it.
    """
    return hmac.new(secret, nonce + b" " + line, hashlib.sha256).hexdigest().encode()


def _secret() -> bytes:
    # It stays in the environment, as the agent takes it from there.
    return bytes.fromhex(os.environ["MONARCH_JOB_SECRET"].strip())


def _own_address() -> str:
    """Return the address to listen at: ``MONARCH_BIND_TO`` if that is set, else 0.0.0.0.

    The exception is a host whose own address is a loopback address: it listens at that alone. A
    scheduler gives such addresses to several hosts of one machine.
    """
    if named := os.environ.get("MONARCH_BIND_TO", ""):
        return named
    address = os.environ.get("MONARCH_POD_IP", "") or _node_address()
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            return address
    return "0.0.0.0"


def _node_address() -> str:
    node = os.environ.get("SLURMD_NODENAME", "")
    if not node:
        return ""
    with contextlib.suppress(OSError):
        command = ["scontrol", "--oneliner", "show", "node", node]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        match = re.search(r"\bNodeAddr=(\S+)", done.stdout)
        return match[1] if match else ""
    return ""
