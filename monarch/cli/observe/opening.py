"""Opens the page in the person's browser."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")


@contextmanager
def page_opener() -> Iterator[PageOpener]:
    """A `PageOpener`, which leaves no file behind."""
    with tempfile.TemporaryDirectory(prefix="monarch-page-") as folder:  # of mode 0700
        yield PageOpener(Path(folder))


class PageOpener:
    """The URL has a token in it, and all users of a machine can read the arguments of a browser. So
    the browser is given a file that only its user can read, which leads to the URL."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "open.html"

    def open(self, url: str) -> bool:
        """Whether there is a browser here to open it."""
        if not _has_browser():
            return False
        self._file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}">'
            f'<a href="{escape(url)}">the page</a>\n'
        )
        try:
            return webbrowser.open(self._file.as_uri())
        except webbrowser.Error:
            return False


def _has_browser() -> bool:
    """Behind a login there is none, but perhaps one that draws in the terminal of the run."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)
