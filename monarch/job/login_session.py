"""One login to a machine: a Python there that reads orders, and answers."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from monarch import __version__
from monarch.errors import JobError

END_SECONDS = 30.0
_CUT_OFF_SECONDS = 1.0
_MAX_WORDS = 20

# All that a login shell gets to see: no shell reads anything else into it. The command to run comes
# as the first line of standard input.
_REMOTE = "exec {python} -c 'import sys;exec(eval(sys.stdin.readline()))'"

# Read by whatever Python there is, so that one of version 2 can say what it is.
_FIRST_LINE = """
import json, sys
def tell(error):
    sys.stdout.write({mark!r} + json.dumps({{"error": error}}) + "\\n")
    sys.stdout.flush()
found = "%s, which is Python %d.%d" % ((sys.executable,) + tuple(sys.version_info[:2]))
sys.path[:] = [path for path in sys.path if path]
if sys.version_info < (3, 10):
    tell("it has %s; Python 3.10 or later is needed. Name one with `python`" % found)
else:
    try:
        from monarch.runtime.hosts.starter import main
    except ImportError as error:
        tell("monarch cannot be imported there (%s): install it for %s, or name another with "
             "`python`" % (error, found))
    else:
        main({mark!r}, {version!r})
"""


class LoginSession:
    """One login, its orders and answers. The Python that reads them is started at once."""

    def __init__(self, command: Sequence[str], python: str) -> None:
        self.has_answered = False
        self._mark = f"monarch-{secrets.token_hex(8)} "
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # A file: what a login leaves in the background may keep it open for long.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # In a session of its own: Ctrl-C in this terminal is for us to act upon.
            self._process = subprocess.Popen(
                [*command, _REMOTE.format(python=python)], start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            words = error.strerror or str(error)
            raise JobError(f"cannot run `{command[0]}`: {words}. Is it installed?") from None
        self._reader = threading.Thread(target=self._read, name="monarch-login", daemon=True)
        self._reader.start()
        program = _FIRST_LINE.format(mark=self._mark, version=__version__)
        self._write(ascii(program))

    def _write(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # It has ended; the reason is in its answer.
            stdin.write(f"{line}\n".encode())
            stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        mark = self._mark.encode()
        for line in self._process.stdout:
            if line.startswith(mark):
                self._answers.put(json.loads(line[len(mark) :]))
        self._answers.put(None)

    def order(self, order: Mapping[str, Any]) -> None:
        self._write(json.dumps(order))

    def answer(self, deadline: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return {"error": "no answer in time"}
        if answer is None:
            return {"error": self._words()}
        self.has_answered = True
        return answer

    def _words(self) -> str:
        """Why the login ended, in its own words."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        told = [line.rstrip() for line in lines if line.strip("@ \r\t")]
        return "\n".join(told[-_MAX_WORDS:]) or f"the login ended with status {status}"

    def hang_up(self) -> None:
        """The far end hears that there will be no more orders."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def has_ended(self, deadline: float) -> bool:
        """After ``hang_up``; a login that does not end by then is cut off."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._errors.close()
            if self._process.stdout is not None:
                self._reader.join(1.0)
                self._process.stdout.close()


def ask_all(
    logins: Mapping[str, LoginSession], orders: Mapping[str, Mapping[str, Any]], seconds: float
) -> dict[str, dict[str, Any]]:
    """An order to each, all at once; and the answers, or an ``error`` each."""
    deadline = time.monotonic() + seconds
    for host, order in orders.items():
        logins[host].order(order)
    return {host: logins[host].answer(deadline) for host in orders}


def end_all(logins: dict[str, LoginSession]) -> dict[str, str]:
    """End logins, all at once; those that had to be cut off, with words."""
    now = time.monotonic()
    for login in logins.values():
        login.hang_up()
    left = {}
    for host, login in logins.items():
        # One that has not come through yet is cut off soon: should it, the far end notices.
        seconds = END_SECONDS if login.has_answered else _CUT_OFF_SECONDS
        if not login.has_ended(now + seconds) and login.has_answered:
            left[host] = f"its login did not end within {seconds:.0f} s"
    logins.clear()
    return left
