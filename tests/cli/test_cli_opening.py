"""The page in the person's browser."""

from __future__ import annotations

import os
import stat
import webbrowser
from pathlib import Path
from urllib.parse import urlparse

import pytest

from monarch.cli.observe.opening import page_opener


def test_a_browser_is_told_no_token_in_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users of the machine can read them."""
    given: list[str] = []
    monkeypatch.setenv("BROWSER", "firefox")
    monkeypatch.setattr(webbrowser, "open", lambda url: given.append(url) or True)
    with page_opener() as opener:
        assert opener.open("http://127.0.0.1:1/#t=secret")
        (link,) = given
        assert "secret" not in link
        path = Path(urlparse(link).path)
        assert "http://127.0.0.1:1/#t=secret" in path.read_text()
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert not path.exists()


def test_behind_a_login_no_browser_draws_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with page_opener() as opener:
        assert not opener.open("http://127.0.0.1:1/#t=secret")
