"""One task of a Slurm job: the host agent of its node."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

from monarch.net.gate import is_loopback
from monarch.runtime.entry.scheduled_task import keep_host
from monarch.runtime.hosts.end_notice import EndNotice, grace_seconds

# The environment variable with the IP address to listen at, where the job names one.
BIND_TO = "MONARCH_BIND_TO"
_ASK_SECONDS = 10.0
_MOST_ASKS = 3
# A job is SIGNALING until all its nodes have confirmed the signal: it runs on all the same.
_RUNS_ON = ("RUNNING", "SIGNALING")


def node_addresses(nodes: str) -> dict[str, str]:
    """Return the network address of each node, by name, as ``scontrol`` reports it.

    ``nodes`` may be a list in Slurm's notation, such as ``node[1-4]``. Raises ``OSError`` with the
    message of ``scontrol``.
    """
    command = ["scontrol", "--oneliner", "show", "node", nodes]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"scontrol show node {nodes}: {(done.stderr or done.stdout).strip()}")
    addresses = {}
    for line in done.stdout.splitlines():
        name = re.search(r"\bNodeName=(\S+)", line)
        address = re.search(r"\bNodeAddr=(\S+)", line)
        if name is not None:
            addresses[name[1]] = address[1] if address is not None else name[1]
    return addresses


def main() -> None:
    """Keep a host agent on this node: ``python -m monarch.runtime.entry.slurm_task PORT``."""
    port = int(sys.argv[1])
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    address = f"tcp://{node_addresses(node)[node]}:{port}"
    # On a node its own name may stand for loopback only, so it listens at all interfaces; but
    # several nodes of one machine have a loopback address each.
    bind = address if is_loopback(address) else f"tcp://0.0.0.0:{port}"
    if interface := os.environ.pop(BIND_TO, ""):
        bind = f"tcp://[{interface}]:{port}" if ":" in interface else f"tcp://{interface}:{port}"
    if "WORKSPACE_DIR" in os.environ and os.environ.get("SLURM_NNODES", "1") != "1":
        # Two hosts must not share one folder.
        os.environ["WORKSPACE_DIR"] = os.path.join(os.environ["WORKSPACE_DIR"], node)
    sys.exit(abs(keep_host(f"{address}@{bind}", node, _meaning, again=True)))


def _meaning(number: int, ask_seconds: float = _ASK_SECONDS) -> EndNotice | None:
    """Return the end that a signal announces; None if the job was cancelled and must end at once.

    Slurm sends SIGTERM for a cancelled job, and for a job that gives way to another after a grace
    period. SIGUSR1 is the signal that we ask Slurm to send before the time limit.
    """
    state, seconds = _state_and_seconds(os.environ.get("SLURM_JOB_ID", ""), ask_seconds)
    if number == signal.SIGUSR1:
        return EndNotice("the time limit of its Slurm job", seconds)
    if state is None:
        # The grace may have begun when Slurm was asked, which took time.
        seconds_left = max(0.0, grace_seconds() - ask_seconds)
        why = "Slurm has told its job to end, and does not say why"
        return EndNotice(why, seconds_left, is_last=True)
    if state not in _RUNS_ON:
        return None
    # Slurm does not say when a job without a time limit must end.
    seconds_left = grace_seconds() if seconds is None else seconds
    return EndNotice("its Slurm job gives way to another", seconds_left, is_last=True)


def _state_and_seconds(job: str, ask_seconds: float) -> tuple[str | None, float | None]:
    """Return the state of a job and the seconds until its end. The state is "" if Slurm does not
    know the job, ``None`` without an answer.
    """
    # Its end, as the rest of its time limit does not include a grace period.
    command = ["squeue", "-h", "-j", job, "-o", "%T|%e"]
    env = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    quietly: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    for _ in range(_MOST_ASKS):
        try:
            done = subprocess.run(command, env=env, timeout=ask_seconds, text=True, **quietly)
        except (OSError, subprocess.TimeoutExpired):
            return None, None
        if done.returncode >= 0:
            break
        # Slurm signals all that its tasks have started, squeue too, and twice at a time limit.
    if done.returncode != 0:
        return ("" if "Invalid job id" in done.stderr else None), None
    state, _, end = done.stdout.strip().partition("|")
    return state, _seconds_until(end)


def _seconds_until(moment: str) -> float | None:
    """Return the seconds until ``moment``, in this machine's time; ``None`` for words such as
    NONE.
    """
    try:
        return max(0.0, datetime.fromisoformat(moment).timestamp() - time.time())
    except ValueError:
        return None


def limit_seconds(text: str) -> float | None:
    """Return the seconds of a time as Slurm writes it; None for words, as UNLIMITED."""
    # minutes | minutes:seconds | hours:minutes:seconds | days-hours[:minutes[:seconds]]
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *rest = (int(part) if part else None for part in match.groups())
    first, second, third = rest
    if days is not None or third is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second
    return float((((days or 0) * 24 + (hours or 0)) * 60 + (minutes or 0)) * 60 + (seconds or 0))


if __name__ == "__main__":
    main()
