"""``monarch dev``: hosts, a watch and a run in one terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from monarch.cli.observe.opening import PageOpener, page_opener
from monarch.cli.sync.project_workspace import find_project, workspace_of
from monarch.cli.terminal.keys import Keys
from monarch.cli.terminal.volume import louder, say
from monarch.errors import JobError
from monarch.python_start import module_arguments
from monarch.runtime.ends.process_group import end_child, signal_self

_END_SECONDS = 10.0


def dev(apply: Callable[[], object], run: Callable[[], object], *, opens: bool = False) -> None:
    """Call ``apply``, then ``run`` beside a watch, both in this terminal; ``opens`` also opens the
    dashboard.

    The watch and the page end with the run; the hosts stay. Keys that the user presses go to the
    watch.
    """
    workspace_of(find_project(None))
    apply()
    with page_opener() as opener, _Page(opener) as page, _watch(page) as watch:
        if opens:
            page.open()
        try:
            run()
        except (KeyboardInterrupt, click.Abort, SystemExit):
            if watch.status:
                problem = f"the watch ended with status {watch.status}, and the run with it"
                raise JobError(problem) from None
            raise
    say("the hosts stay up: `monarch kill` ends them")


class _Watch:
    """A watch in a process of its own; its lines are printed here as they arrive."""

    def __init__(self) -> None:
        self._process = _started("sync", "--watch", "--keys", *louder())
        self._is_ending = False
        self.status = 0
        self._reader = threading.Thread(target=self._tell, name="monarch-dev", daemon=True)
        self._reader.start()

    def press(self, key: str) -> None:
        _send(self._process, key)

    def end(self) -> None:
        """End the watch, which first undoes an unfinished push."""
        self._is_ending = True
        end_child(self._process, _END_SECONDS)
        self._reader.join(_END_SECONDS)
        _close_pipes(self._process)

    def _tell(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not self._is_ending:
                _say(line.rstrip("\n"))
        if not self._is_ending:
            # Without it, saves would go nowhere, unnoticed.
            self.status = self._process.wait() or 1
            _say("the watch has ended; the run is saved and ends, too")
            signal_self(signal.SIGINT)


class _Page:
    """The dashboard, as a process that is started when it is first needed.

    It ends with this program, however that ends, as its standard input does.
    """

    def __init__(self, opener: PageOpener) -> None:
        self._opener = opener
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._starting = threading.Lock()
        self._is_over = False

    def __enter__(self) -> _Page:
        return self

    def __exit__(self, *about: object) -> None:
        self._is_over = True
        process = self._process
        if process is not None:
            end_child(process, _END_SECONDS)
            _close_pipes(process)

    def open(self) -> None:
        """Print the URL, and open it in a browser if there is one. Does not wait."""
        threading.Thread(target=self._open, name="monarch-page", daemon=True).start()

    def _open(self) -> None:
        with self._starting:
            if self._is_over:
                return
            if self._process is None or self._process.poll() is not None:
                self._start()
        if self._url and not self._is_over:
            is_open = self._opener.open(self._url)
            _say(f"dashboard: {self._url}{'' if is_open else ' (open it in a browser here)'}")

    def _start(self) -> None:
        self._process = _started("dashboard", "--stdin")
        assert self._process.stdout is not None
        _send(self._process, "{}\n")
        self._url = ""
        for line in self._process.stdout:
            if line.startswith("http"):
                self._url = line.strip()
                return
            if not self._is_over:
                _say(line.rstrip("\n"))


def _started(*words: str) -> subprocess.Popen[str]:
    """Start a ``monarch`` command in a session of its own, and return the process.

    Ctrl-C in this terminal does not reach it: that is for the run.
    """
    return subprocess.Popen(
        [sys.executable, *module_arguments("monarch.cli.main", *words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _send(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(text)
        process.stdin.flush()


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]


@contextmanager
def _watch(page: _Page) -> Iterator[_Watch]:
    watch = _Watch()
    try:
        keys = Keys()
        keys.on_press = lambda: _forward(keys, watch, page)
        with keys.listen():
            yield watch
    finally:
        watch.end()


def _forward(keys: Keys, watch: _Watch, page: _Page) -> None:
    while key := keys.take():
        if key == "q":
            signal_self(signal.SIGINT)
        elif key == "o":
            page.open()
        else:
            watch.press(key)


def _say(text: str) -> None:
    """Print a line at once, above the table of the run if there is one."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        colour = {"✓": "green", "✗": "red"}.get(text[:1])
        text = f"{click.style('sync', dim=True)}  {click.style(text, fg=colour)}"
    else:
        text = f"sync  {text}"
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
