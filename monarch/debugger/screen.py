"""A console's input and output: a terminal with editing, history and completion, or plain lines.

Plain lines are used if standard input is no terminal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

Complete = Callable[[str], Iterable[str]]


class ReadInterrupted(Exception):
    """Another console has answered, or the call goes on, so the line is not needed any longer."""


class Screen(Protocol):
    """A console's input and output.

    ``read`` raises ``EOFError`` at the end of the input, ``KeyboardInterrupt`` at Ctrl-C, and
    ``ReadInterrupted`` after `interrupt`. ``width`` is a terminal's number of columns.
    """

    is_terminal: bool

    @property
    def width(self) -> int | None: ...

    def read(self, prompt: str, complete: Complete) -> str: ...

    def write(self, text: str) -> None:
        """Show text, above the prompt if one is shown. Any thread may call it."""
        ...

    def interrupt(self) -> None:
        """End a `read` in progress on another thread."""
        ...

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Within, show written text above the prompt."""
        ...


class PlainScreen:
    """Input and output as plain lines, for a pipe or a file.

    Each line that is read is written to the output, too.
    """

    is_terminal = False
    width = None

    def read(self, prompt: str, complete: Complete) -> str:
        self.write(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        line = line.rstrip("\n")
        self.write(f"{line}\n")
        return line

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def interrupt(self) -> None:
        """Do nothing: a line that is being read is read to its end."""

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield


class EditingScreen:
    """A terminal, through prompt_toolkit. ``toolbar`` returns the line at its bottom."""

    is_terminal = True

    def __init__(self, toolbar: Callable[[], str], history: Path | None = None) -> None:
        # Imported when used: only a console at a terminal needs it.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        history_kept = InMemoryHistory() if history is None else FileHistory(str(history))
        self._session: PromptSession[str] = PromptSession(
            history=history_kept, bottom_toolbar=toolbar, refresh_interval=1.0
        )

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def read(self, prompt: str, complete: Complete) -> str:
        return self._session.prompt(prompt, completer=_completer(complete))

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def interrupt(self) -> None:
        app = self._session.app
        loop = app.loop
        if app.is_running and loop is not None:
            loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        app = self._session.app
        if app.is_running and app.future is not None and not app.future.done():
            app.exit(exception=ReadInterrupted())

    def shown(self) -> contextlib.AbstractContextManager[None]:
        from prompt_toolkit.patch_stdout import patch_stdout

        return patch_stdout(raw=True)


def _completer(complete: Complete) -> Any:
    from prompt_toolkit.completion import Completer, Completion, ThreadedCompleter

    class Words(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            text = document.text_before_cursor
            start = len(text)
            while start and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
                start -= 1
            for word in complete(text):
                yield Completion(word, start_position=start - len(text))

    return ThreadedCompleter(Words())


def make_screen(toolbar: Callable[[], str], history: Path | None) -> Screen:
    """Return the screen for this program's standard input and output."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if not is_terminal:
        return PlainScreen()
    try:
        return EditingScreen(toolbar, history)
    except ImportError:
        screen = PlainScreen()
        screen.write("for editing and completion: pip install 'monarch-loop[debug]'\n")
        return screen
