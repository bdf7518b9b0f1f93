"""The near end of a gateway: one connection to a host that reaches all the others.

A client that reaches only one machine of a cluster talks to all of them through it. For each
address in the cluster the client makes a Unix socket, to which ZeroMQ connects as it would to the
address itself; and the gateway listens in the client's place for connections from the cluster.
Encryption is end to end: bytes that pass the gateway are encrypted for their receiver.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import secrets
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from monarch.net import resumed_stream, tunnel
from monarch.net.rare_log import RareLog
from monarch.net.tunnel import TunnelEnd
from monarch.python_start import ALONE

_log = logging.getLogger("monarch.net")

# As with other logins: what is to be run comes as the first line of standard input.
_PROGRAM = f"{ALONE}exec(eval(sys.stdin.readline()))"
_AGAIN_SECONDS = 15.0
_PAUSE_SECONDS = 0.3
_GOODBYE_SECONDS = 0.5
_MAX_WORDS = 20


class GatewayError(OSError):
    """The gateway cannot be reached, or reports an error; the text is the gateway's own."""


class Gateway:
    """A gateway, and the connection to it.

    ``command`` logs in to the gateway and runs the shell command that is appended to it, with our
    standard input and output: ``["ssh", "login"]``, or ``["kubectl", "exec", "-i", "pod", "--",
    "sh", "-c"]``. ``python`` is an interpreter there, of version 3.8 or later. ``name`` is for
    errors.

    Raises ``GatewayError`` if it cannot be reached within ``first_seconds``. When the connection
    breaks later, a new one is made and transfers go on, for a minute, which is how long the far end
    waits.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        python: str = "python3",
        *,
        first_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self._first_seconds = first_seconds
        #: The login, with the shell command that starts the far end.
        self._command = [*command, f"exec {python} -c {shlex.quote(_PROGRAM)}"]
        #: Names the far end, so that a new login finds it again.
        self._session = secrets.token_hex(16)
        #: The folder of the Unix sockets that lead through the gateway.
        self._temporary = tempfile.TemporaryDirectory(prefix="mgw-", ignore_cleanup_errors=True)
        self._folder = self._temporary.name
        #: The path of the Unix socket by HOST:PORT; under the lock.
        self._local_paths: dict[str, str] = {}
        self._making = threading.Lock()
        self._is_closed = False
        #: What the login writes to standard error.
        self._errors: IO[bytes] | None = None
        #: The login; None while the connection is cut.
        self._process: subprocess.Popen[bytes] | None = None
        self._rare = RareLog(_log)
        #: Belongs to ``_thread`` once that runs.
        self._end = TunnelEnd(first_stream=1, on_broken=self._hang_up)
        try:
            self._end.attach(self._dial(first_seconds))
        except BaseException:
            self._end.close()
            self._hang_up()
            self._temporary.cleanup()
            raise
        self._thread = threading.Thread(target=self._run, name="monarch-gateway", daemon=True)
        self._thread.start()

    @property
    def num_bytes(self) -> tuple[int, int]:
        """How many bytes have passed through the connection: to the gateway, and from it."""
        return self._end.num_bytes

    def way_to(self, url: str) -> str:
        """Return a local URL that leads to ``url``, a TCP address that the gateway reaches."""
        parts = urlsplit(url)
        target = f"{parts.hostname}:{parts.port}"
        with self._making:
            path = self._local_paths.get(target)
            if path is None:
                path = os.path.join(self._folder, str(len(self._local_paths)))
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(path)
                listener.listen(64)
                self._local_paths[target] = path
                self._end.post(functools.partial(self._end.add_way, listener, target))
        return f"ipc://{path}"

    def listen(self, towards: str, port: int) -> str:
        """Have the gateway listen for connections to ``port`` here.

        Return the URL at which the machine at ``towards``, a TCP URL, reaches it. Raises
        ``GatewayError`` if the gateway does not answer, or cannot listen.
        """
        parts = urlsplit(towards)
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        wish = f"{parts.hostname}:{parts.port}"
        self._end.post(lambda: self._end.listen(wish, ("127.0.0.1", port), answers.put))
        answer = self._wait(answers)
        if answer.startswith("!"):
            raise GatewayError(f"{self.name} cannot listen for this machine: {answer[1:]}")
        return f"tcp://{answer}"

    def knock(self, url: str, seconds: float) -> str:
        """Return "" if a process listens at ``url``, else the reason why not; "no answer" if that
        is not known in time."""
        parts = urlsplit(url)
        target = f"{parts.hostname}:{parts.port}"
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        opened: list[int] = []
        self._end.post(lambda: opened.append(self._end.connect(None, target, answers.put)))
        try:
            return answers.get(timeout=seconds)
        except queue.Empty:
            return "no answer"
        finally:
            self._end.post(lambda: self._end.hang_up(opened[0]))

    def _wait(self, answers: queue.SimpleQueue[str]) -> str:
        try:
            return answers.get(timeout=self._first_seconds)
        except queue.Empty:
            raise GatewayError(f"{self.name} does not answer") from None

    def _run(self) -> None:
        began = False
        while not self._is_closed:
            if self._end.is_attached:
                began = False
                self._end.step(1.0)
                continue
            if not began:
                began = True
                self._rare.warning("cut", "the connection to %s is cut; trying again", self.name)
            try:
                self._end.attach(self._dial(_AGAIN_SECONDS))
            except OSError as error:
                self._rare.warning("again", "%s; trying again", error)
                time.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            self._end.say_goodbye()
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while self._end.is_attached and time.monotonic() < deadline:
                self._end.step(0.1)  # Until it has hung up.
        self._end.close()
        self._hang_up()

    def _dial(self, seconds: float) -> socket.socket:
        """Return a new stream to the far end of this session."""
        mark = f"monarch-{secrets.token_hex(8)} "
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            try:
                # In a session of its own: Ctrl-C in this terminal is for us to act upon.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._errors,
                    start_new_session=True,
                )
            except OSError as error:
                words = error.strerror or str(error)
                raise GatewayError(f"cannot run `{self._command[0]}`: {words}") from None
            finally:
                theirs.close()
            ours.settimeout(seconds)
            ours.sendall(f"{_first_line(mark, self._session)}\n".encode())
            answer = _answer(ours, mark.encode(), time.monotonic() + seconds)
            if not answer:
                raise ConnectionResetError
            if answer != "ready":
                raise GatewayError(f"{self.name}: {answer.lstrip('!')}")
        except BaseException as error:
            ours.close()
            output = self._words() if isinstance(error, TimeoutError | ConnectionError) else ""
            status = None if self._process is None else self._process.returncode
            self._hang_up()
            if isinstance(error, OSError) and not isinstance(error, GatewayError):
                silent = (
                    f"no answer within {seconds:.0f} s"
                    if status is None
                    else f"the login ended with status {status} and said nothing"
                )
                raise GatewayError(f"{self.name}: {output or silent}") from None
            raise
        return ours

    def _words(self) -> str:
        if self._process is None or self._errors is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if line.strip())[-80 * _MAX_WORDS :]

    def _hang_up(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def close(self) -> None:
        """End the program at the gateway, and all connections through it. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._end.post(lambda: None)
        self._thread.join(5.0)
        self._temporary.cleanup()


def _first_line(mark: str, session: str) -> str:
    """Return the text of the far end's program, as a Python literal."""
    texts = {
        module.__name__: Path(str(module.__file__)).read_text(encoding="utf-8")
        for module in (resumed_stream, tunnel)
    }
    return ascii(
        "import sys, types\n"
        "if sys.version_info < (3, 8):\n"
        f"    sys.stdout.write({mark!r} + '!it has Python %d.%d; a gateway needs 3.8 or later\\n' "
        "% tuple(sys.version_info[:2])); sys.stdout.flush(); sys.exit()\n"
        "for name in ('monarch', 'monarch.net'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        f"for name, text in {texts!r}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), vars(module))\n"
        f"module.far_end({mark!r}, {session!r})\n"
    )


def _answer(ours: socket.socket, mark: bytes, deadline: float) -> str:
    """Return the line that begins with the mark, and skip all other output of the login; "" if the
    stream ends before."""
    received = b""
    while time.monotonic() < deadline:
        data = ours.recv(1)  # No more than the line: what follows is the tunnel's.
        if not data:
            return ""
        received += data
        if data == b"\n":
            if received.startswith(mark):
                return received[len(mark) :].strip().decode(errors="replace")
            received = b""
    raise TimeoutError
