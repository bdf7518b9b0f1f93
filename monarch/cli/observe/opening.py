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
    """Yield a `PageOpener`, which leaves no file behind."""
    with tempfile.TemporaryDirectory(prefix="monarch-page-") as folder:  # of mode 0700
        yield PageOpener(Path(folder))


class PageOpener:
    """Opens the page in a browser without showing the URL's token to other users.

    All users of a machine can read a browser's arguments. So the browser gets a file that only its
    user can read, which leads to the URL.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "open.html"

    def open(self, url: str) -> bool:
        """Open the URL; return False if there is no browser here."""
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
    """Whether this machine has a graphical display for a browser.

    A browser that runs in a terminal is not used, because it would draw over the run's output.
    """
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)
