"""Starts a probe on a host, by a login, a host agent or here, and receives its answers."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from monarch.job.doctor import probe
from monarch.python_start import ALONE
from monarch.runtime.node import Node
from monarch.runtime.programs.remote_program import RemoteProgram
from monarch.wire.address import ProcAddress

# The whole command line that a shell there sees, as in a login.
_REMOTE = f"exec {{python}} -c '{ALONE}exec(eval(sys.stdin.readline()))'"
_FIRST_LINE = """
import sys
if sys.version_info < (3, 7):
    sys.stdout.write({mark!r} + '{{"python": [%d, %d, 0]}}\\n' % tuple(sys.version_info[:2]))
    sys.stdout.flush()
else:
    names = {{"__name__": "monarch_probe"}}
    exec(compile({text!r}, "probe", "exec"), names)
    names["main"]({mark!r})
"""
_MAX_WORDS = 6


class ProbeSession:
    """A running probe: ``write`` sends to it, ``words`` says why it ended, ``end`` ends it."""

    def __init__(
        self,
        mark: str,
        write: Callable[[bytes], object],
        words: Callable[[], str],
        end: Callable[[], object],
    ) -> None:
        self._mark = mark.encode()
        self._write, self._words, self.close = write, words, end
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._rest = b""
        self.asked_at = self.answered_at = 0.0

    def take(self, data: bytes) -> None:
        """Collect the answers from the output of the probe, or of a shell around it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(self._mark):
                with contextlib.suppress(ValueError):
                    self.answered_at = time.time()
                    self._answers.put(json.loads(line[len(self._mark) :]))

    def over(self) -> None:
        """Note that the probe's output has ended."""
        self._answers.put(None)

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order to the probe."""
        self.asked_at = time.time()
        with contextlib.suppress(OSError):  # It has ended; the reason is in its answer.
            self._write(json.dumps(order).encode() + b"\n")

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the next answer, or a dictionary with an ``error``."""
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return {"error": "no answer in time"}
        return {"error": self._words()} if answer is None else answer


def probe_by_login(
    command: Sequence[str], python: str, *, words_seconds: float = 5.0
) -> ProbeSession:
    """Start a probe with ``command``, which logs in and runs a shell command. A login that says
    nothing more is given ``words_seconds`` to end. Raises ``OSError``."""
    mark = _new_mark()
    errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the login)
    process = subprocess.Popen(
        [*command, _REMOTE.format(python=python)], start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
    )  # fmt: skip

    def words() -> str:
        try:
            status = process.wait(words_seconds)
        except subprocess.TimeoutExpired:
            # It has closed its output but does not end, like a process that a login left behind.
            return "the login says nothing more, and does not end"
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip("@ \r\t")]
        return "; ".join(told[-_MAX_WORDS:]) or f"the login ended with status {status}"

    def end() -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait()
        reader.join(1.0)
        process.stdout.close()
        errors.close()

    assert process.stdin is not None
    session = ProbeSession(mark, process.stdin.write, words, end)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            session.take(line)
        session.over()

    reader = threading.Thread(target=read, name="monarch-probe", daemon=True)
    reader.start()
    with contextlib.suppress(OSError):
        process.stdin.write(ascii(_program(mark)).encode() + b"\n")
    return session


def probe_here() -> ProbeSession:
    """Start a probe on this machine, with this Python."""
    return probe_by_login(["sh", "-c"], sys.executable)


def probe_by_agent(node: Node, host: ProcAddress) -> ProbeSession:
    """Start a probe that a host's agent runs."""
    mark = _new_mark()
    program = RemoteProgram(node, host, lambda stream, data: None)
    session = ProbeSession(mark, program.write, lambda: program.ended.value.reason, program.leave)

    def take(stream: int, data: bytes) -> None:
        session.take(data)
        program.shown(stream, len(data))

    program.on_output = take
    program.ended.on_set(session.over)
    text = Path(probe.__file__).read_bytes()
    program.run([mark], script=text, is_python=True)
    return session


def _new_mark() -> str:
    return f"monarch-{secrets.token_hex(8)} "


def _program(mark: str) -> str:
    text = Path(probe.__file__).read_text(encoding="utf-8")
    return _FIRST_LINE.format(mark=mark, text=text)
