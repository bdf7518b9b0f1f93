"""One login to a machine: a Python there reads orders, and answers."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import queue
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from monarch.errors import JobError
from monarch.job.bundle.bundle import bundle_for, known_bundles
from monarch.python_start import ALONE
from monarch.runtime.hosts import bundle_place
from monarch.version import __version__

END_SECONDS = 30.0
_CUT_OFF_SECONDS = 1.0
_MAX_WORDS = 20
_BUNDLE_SECONDS = 600.0
"""Beyond what a bundle takes over a slow link."""

# The whole command line that a login shell sees, so that no shell misreads it. The command comes
# as the first line of standard input.
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


_MAX_AT_ONCE = 64


@functools.cache
def _bundle_place() -> str:
    """Return the source of the module that finds and unpacks bundles, for a Python without our
    code."""
    return Path(bundle_place.__file__).read_text(encoding="utf-8")


class LoginSession:
    """One login, which starts a Python there at once; its orders and answers. ``words_seconds``:
    how long a login that says nothing more is given to end."""

    def __init__(self, command: Sequence[str], python: str, *, words_seconds: float = 5.0) -> None:
        self._words_seconds = words_seconds
        self.has_answered = False
        self._mark = f"monarch-{secrets.token_hex(8)} "
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # A file: a process that the login left in the background may keep it open for long.
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
        program = _FIRST_LINE.format(
            mark=self._mark, version=__version__, known=known_bundles(), place=_bundle_place()
        )
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

    def _bring_bundle(self, wanted: Mapping[str, Any]) -> None:
        """Send the bundle that fits the host's Python, or the error that there is none."""
        try:
            bundle = bundle_for(str(wanted["tag"]), [str(one) for one in wanted["platforms"]])
        except JobError as error:
            self._write(f"bundle-error {json.dumps(str(error))}")
            return
        data = base64.b64encode(bundle.path.read_bytes()).decode()
        self._write(f"bundle {bundle.digest} {data}")

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
        if "bundle" in answer:
            self._bring_bundle(answer["bundle"])
            return self.answer(time.monotonic() + _BUNDLE_SECONDS)
        return answer

    def _words(self) -> str:
        """Return why the login ended, in its own words."""
        try:
            status = self._process.wait(self._words_seconds)
        except subprocess.TimeoutExpired:
            return "the login says nothing more, and does not end"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        told = [line.rstrip() for line in lines if line.strip("@ \r\t")]
        return "\n".join(told[-_MAX_WORDS:]) or f"the login ended with status {status}"

    def hang_up(self) -> None:
        """Close the login's input: the other end learns that no more orders follow."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

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
            if self._process.stdout is not None:
                self._reader.join(1.0)
                self._process.stdout.close()


def ask_all(
    logins: Mapping[str, LoginSession], orders: Mapping[str, Mapping[str, Any]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Give each login an order, all at once; return the answers, or an ``error`` each."""
    deadline = time.monotonic() + seconds
    for host, order in orders.items():
        logins[host].order(order)
    if not orders:
        return {}
    # At once: some may need a bundle first, which takes longer than an answer.
    with ThreadPoolExecutor(min(len(orders), _MAX_AT_ONCE)) as pool:
        answers = pool.map(lambda host: logins[host].answer(deadline), orders)
        return dict(zip(orders, answers, strict=True))


def end_all(logins: dict[str, LoginSession]) -> dict[str, str]:
    """End all logins at once; return the hosts whose logins had to be killed, with the reason."""
    now = time.monotonic()
    for login in logins.values():
        login.hang_up()
    left = {}
    for host, login in logins.items():
        # A login that is not through yet is killed soon: if it gets through, the far end notices.
        seconds = END_SECONDS if login.has_answered else _CUT_OFF_SECONDS
        if not login.has_ended(now + seconds) and login.has_answered:
            left[host] = f"its login did not end within {seconds:.0f} s"
    logins.clear()
    return left
