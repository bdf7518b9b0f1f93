"""Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_for

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or ""


class Browser:
    """One page. A ``with`` block; its profile is in ``folder``. ``errors``: what its console has of
    errors and warnings. What it asks by ``confirm`` is answered with yes."""

    def __init__(self, folder: Path) -> None:
        self._websocket = pytest.importorskip("websocket")
        self._folder = folder
        self._number = 0
        self.requested: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Browser:
        self._process = subprocess.Popen(
            [
                PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                f"--user-data-dir={self._folder}", "--remote-debugging-port=0",
                "--remote-allow-origins=*", "--window-size=1400,1500", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"HOME": str(self._folder)},
        )  # fmt: skip
        told = self._folder / "DevToolsActivePort"
        port = wait_for(lambda: told.exists() and told.read_text().split("\n")[0], 60.0)

        def opened() -> list[Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                return [page for page in json.load(answer) if page["type"] == "page"]

        pages = wait_for(opened, 60.0)
        self._socket = self._websocket.create_connection(
            pages[0]["webSocketDebuggerUrl"], timeout=60
        )
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._do(f"{domain}.enable")
        return self

    def __exit__(self, *about: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def _do(self, method: str, **params: Any) -> Any:
        self._number += 1
        mine = self._number
        self._socket.send(json.dumps({"id": mine, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv())
            self._note(told.get("method", ""), told.get("params", {}))
            if told.get("id") == mine:
                assert "error" not in told, told
                return told["result"]

    def _note(self, kind: str, about: Any) -> None:
        if kind == "Network.requestWillBeSent":
            self.requested.append(about["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(about["args"]))
        elif kind == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(about["entry"]))
        elif kind == "Page.javascriptDialogOpening":
            # Whoever asked for something in the page waits until that is answered.
            self._number += 1
            message = {"id": self._number, "method": "Page.handleJavaScriptDialog"}
            self._socket.send(json.dumps({**message, "params": {"accept": True}}))

    def resize(self, width: int, height: int) -> None:
        self._do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def open(self, url: str) -> None:
        self._do("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._do(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60.0) -> Any:
        """The first true value of an expression."""
        look: Callable[[], Any] = lambda: self.run(script)  # noqa: E731
        return wait_for(look, seconds, script)

    def picture(self, path: Path) -> None:
        data = self._do("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
