"""An author in a process of its own, that may be made to die at one of its steps.

    python -m tests.workspace.author '{"folder": ..., "urls": [...], "owner": [...], ...}'

Prints a line for each push: "pushed GENERATION", "refused REASONS" or "failed ERROR". Without an
"owner" it pushes to whoever the hosts name; "between" is a program that it runs after its first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from monarch.runtime.client_agent import client
from monarch.runtime.workspace.code_switch.remote_owner import RemoteOwner
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress
from monarch_sync import Workspace
from tests.workspace.steps import Strike, struck

__all__ = ["script"]


def script(order: dict[str, Any]) -> str:
    """A program for ``tests.support.Program``."""
    return f"from tests.workspace.author import main; main({json.dumps(order)!r})"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(text: str) -> None:
    order = json.loads(text)
    agent = client()
    whose: dict[str, Any] = {"is_visit": True}  # of the clients that the hosts name
    if "owner" in order:
        uid, urls, machine = order["owner"]
        owner = RemoteOwner(agent.node, ProcAddress(uid, tuple(urls), machine))
        whose = {"owners": [owner]}
    hosts = [agent.visit(url) for url in order["urls"]]
    folder = Path(order["folder"])
    strike = None
    if order.get("step"):
        strike = Strike(order["step"], _die, order.get("target", ""), order["is_after"])
    for number, mark in enumerate(order["marks"]):
        if number == 1 and "between" in order:
            subprocess.run([sys.executable, "-c", order["between"]], check=True, timeout=60)
        path = folder / order.get("file", "player.py")
        path.write_text(re.sub(r"MARK = \d+", f"MARK = {mark}", path.read_text()))
        with struck(strike) if strike else contextlib.nullcontext():
            try:
                report = session_of(agent).push(hosts, Workspace(dirs={folder: ""}), **whose)
            except Exception as error:
                print(f"failed {type(error).__name__}: {error}", flush=True)
                continue
        if report.ok:
            print(f"pushed {report.generation}", flush=True)
        else:
            print(f"refused {' '.join(report.errors)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
