"""Machines of a cloud that is not there: processes, each with a loopback address of its own.

What is known of them lies in the folder ``FAKE_CLOUD``, so that several programs see the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_END_SECONDS = 5.0


def folder() -> Path:
    return Path(os.environ["FAKE_CLOUD"])


@contextlib.contextmanager
def locked() -> Iterator[None]:
    with open(folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_addresses(num: int) -> list[str]:
    """Loopback addresses that no machine has had."""
    with locked():
        count = folder() / "addresses"
        first = int(count.read_text()) if count.exists() else 0
        count.write_text(str(first + num))
    return [f"127.0.0.{71 + first + index}" for index in range(num)]


def refusal() -> str:
    """The cloud's refusal of every order; empty where it takes them."""
    path = folder() / "refusal"
    return path.read_text() if path.exists() else ""


def note(name: str, fields: Mapping[str, Any] | None) -> None:
    """Note a job or cluster, or forget it."""
    path = folder() / f"{name}.json"
    if fields is None:
        path.unlink(missing_ok=True)
        return
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


def noted(name: str) -> dict[str, Any] | None:
    try:
        fields: dict[str, Any] = json.loads((folder() / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    return fields


def start(command: str, num: int, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Machines that run a command each: their addresses, and the processes."""
    addresses = new_addresses(num)
    machines = []
    for rank, address in enumerate(addresses):
        own = {
            "MONARCH_POD_NAME": f"m{rank}", "MONARCH_POD_IP": address,
            "SKYPILOT_NODE_IPS": "\n".join(addresses), "SKYPILOT_NODE_RANK": str(rank),
        }  # fmt: skip
        with open(folder() / f"{address}.log", "wb") as log:
            # No child of ours: it outlives the program that has ordered it.
            started = subprocess.run(
                ["sh", "-c", f"exec 3>&1 >&2; env {command} 3>&- & echo $! >&3"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, check=True,
                env={**os.environ, **env, **own}, start_new_session=True,
            )  # fmt: skip
        machines.append({"address": address, "pid": int(started.stdout)})
    return machines


def is_up(machine: Mapping[str, Any]) -> bool:
    try:
        status = Path(f"/proc/{machine['pid']}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def stop(machines: Sequence[Mapping[str, Any]]) -> None:
    """Power them off."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for machine in machines:
            if is_up(machine):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(machine["pid"], number)
        deadline = time.monotonic() + _END_SECONDS
        while any(map(is_up, machines)) and time.monotonic() < deadline:
            time.sleep(0.01)
