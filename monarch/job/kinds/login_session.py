"""Logins to a machine that run a script of ours in a Python there, which answers orders."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from monarch.errors import JobError
from monarch.job.bundle.bundle import bundle_line, known_bundles
from monarch.python_start import ALONE
from monarch.runtime.hosts import bundle_place
from monarch.version import __version__

END_SECONDS = 30.0
_CUT_OFF_SECONDS = 1.0
_MAX_LINES = 20
_BUNDLE_SECONDS = 600.0  # longer than a bundle takes over a slow link
_MAX_AT_ONCE = 64

# The whole command line of the login shell, which any shell reads alike. The program follows as the
# first line of standard input.
_REMOTE = f"exec {{python}} -c '{ALONE}exec(eval(sys.stdin.readline()))'"

# Any Python can read this, so that one of version 2 can say what it is.
_FIRST_LINE = """
import json, sys
def tell(answer):
    sys.stdout.write({mark!r} + json.dumps(answer) + "\\n")
    sys.stdout.flush()
if sys.version_info < (3, 10):
    found = "%s, which is Python %d.%d" % ((sys.executable,) + tuple(sys.version_info[:2]))
    tell({{"error": "it has %s; Python 3.10 or later is needed. Name one with `python`" % found}})
else:
    kept = []
    try:
        import monarch
        has_ours = monarch.__version__ == {version!r}
        if has_ours:
            from monarch.runtime.hosts.starter import main
    except ImportError:
        has_ours = False
    if not has_ours:
        space = {{"__name__": "bundle_place"}}
        exec({place!r}, space)
        kept = space["import_from_bundle"]({known!r}, tell, sys.stdin.readline)
        if kept is not None:
            from monarch.runtime.hosts.starter import main
    if kept is not None:
        main({mark!r}, {version!r}, kept)
"""


def _starter_script(mark: str) -> str:
    # The module that finds and unpacks bundles, for a Python without our code.
    place = Path(bundle_place.__file__).read_text(encoding="utf-8")
    return _FIRST_LINE.format(mark=mark, version=__version__, known=known_bundles(), place=place)


class ScriptSession:
    """A script of ours that runs on a host, and answers orders: both are lines of JSON.

    Lines of its output that do not begin with ``mark`` are a shell's, and ignored. ``write`` sends
    a line to it, ``words`` returns why it has ended, ``close`` ends it.
    """

    def __init__(
        self,
        mark: str,
        write: Callable[[bytes], object],
        words: Callable[[], str],
        close: Callable[[], object],
    ) -> None:
        self.close = close
        #: When the last order was sent, and the last answer came, in seconds since the epoch.
        self.asked_at = self.answered_at = 0.0
        self._mark = mark.encode()
        self._write = write
        self._words = words
        #: Answers from the thread that reads; ``None`` at the end of the output.
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        #: The beginning of an unfinished line.
        self._unfinished = b""

    def take(self, data: bytes) -> None:
        """Collect the answers from output of the script, or of a shell around it."""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            if line.startswith(self._mark):
                with contextlib.suppress(ValueError):
                    self.answered_at = time.time()
                    self._answers.put(json.loads(line[len(self._mark) :]))

    def over(self) -> None:
        """Record that the output has ended."""
        self._answers.put(None)

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order to the script."""
        self.asked_at = time.time()
        self._send(json.dumps(order))

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # It has ended; `answer` returns the reason.
            self._write(f"{line}\n".encode())

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the next answer, or a dictionary with an ``error``."""
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return {"error": "no answer in time"}
        return {"error": self._words()} if answer is None else answer


def new_mark() -> str:
    """Return a new mark: the text with which a session's answers begin, and no shell's lines."""
    return f"monarch-{secrets.token_hex(8)} "


class PythonLogin(ScriptSession):
    """A login that runs a script of ours in a Python on the other machine.

    ``script`` gets the mark of answers, and returns the script, which is sent as the first line of
    standard input. A login that has closed its output gets ``words_seconds`` to end. Raises
    ``JobError`` if ``command`` cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        python: str,
        script: Callable[[str], str],
        *,
        words_seconds: float = 5.0,
    ) -> None:
        self._words_seconds = words_seconds
        # A file, since a process that the login left behind may keep a pipe open for long.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # A new session, so that Ctrl-C in this terminal does not reach it.
            self._process = subprocess.Popen(
                [*command, _REMOTE.format(python=python)],
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            reason = error.strerror or str(error)
            raise JobError(f"cannot run `{command[0]}`: {reason}. Is it installed?") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        mark = new_mark()
        super().__init__(mark, self._write_all, self._why_ended, self._kill)
        self._reader = threading.Thread(target=self._read, name="monarch-login", daemon=True)
        self._reader.start()
        self._send(ascii(script(mark)))

    def _write_all(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def _read(self) -> None:
        for line in self._stdout:
            self.take(line)
        self.over()

    def _why_ended(self) -> str:
        """Return the last lines that the login printed as errors, or else its exit status."""
        try:
            status = self._process.wait(self._words_seconds)
        except subprocess.TimeoutExpired:
            return "the login says nothing more, and does not end"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        lines = [line.rstrip() for line in lines if line.strip("@ \r\t")]
        return "\n".join(lines[-_MAX_LINES:]) or f"the login ended with status {status}"

    def hang_up(self) -> None:
        """Close the login's input: the other end learns that no more orders follow."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def has_ended(self, deadline: float) -> bool:
        """Wait for the login to end, after ``hang_up``; at the deadline kill it and return
        False."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._errors.close()
            self._reader.join(1.0)
            self._stdout.close()

    def _kill(self) -> None:
        self.hang_up()
        self.has_ended(time.monotonic())


class LoginSession(PythonLogin):
    """A login that starts and ends host agents; a host without monarch gets a bundle first."""

    def __init__(self, command: Sequence[str], python: str, *, words_seconds: float = 5.0) -> None:
        super().__init__(command, python, _starter_script, words_seconds=words_seconds)

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the next answer, or a dictionary with an ``error``. If the host asks for a bundle
        first, send it."""
        answer = super().answer(deadline)
        if "bundle" in answer:
            self._send(bundle_line(answer["bundle"])[0])
            return self.answer(time.monotonic() + _BUNDLE_SECONDS)
        return answer


def ask_all(
    logins: Mapping[str, LoginSession], orders: Mapping[str, Mapping[str, Any]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Give each login an order, all at once; return the answers, or an ``error`` each."""
    deadline = time.monotonic() + seconds
    for host, order in orders.items():
        logins[host].order(order)
    if not orders:
        return {}
    # In parallel: some may need a bundle first, which takes longer than an answer.
    with ThreadPoolExecutor(min(len(orders), _MAX_AT_ONCE)) as pool:
        answers = pool.map(lambda host: logins[host].answer(deadline), orders)
        return dict(zip(orders, answers, strict=True))


def end_all(logins: dict[str, LoginSession]) -> dict[str, str]:
    """End all logins at once; return the hosts whose logins had to be killed, with the reason."""
    began = time.monotonic()
    for login in logins.values():
        login.hang_up()
    errors = {}
    for host, login in logins.items():
        # A login that has not succeeded yet is killed soon; if it does, the far end notices that.
        seconds = END_SECONDS if login.answered_at else _CUT_OFF_SECONDS
        if not login.has_ended(began + seconds) and login.answered_at:
            errors[host] = f"its login did not end within {seconds:.0f} s"
    logins.clear()
    return errors
