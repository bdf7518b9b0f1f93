"""One task of a Slurm job: the host agent of its node."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

from monarch.net.gate import is_loopback
from monarch.runtime.hosts.end_notice import EndNotice
from monarch.runtime.scheduled_task import keep_host

# The environment variable with the IP address to listen at, where the job names one.
BIND_TO = "MONARCH_BIND_TO"
_ASK_SECONDS = 10.0


def node_addresses(nodes: str) -> dict[str, str]:
    """Where nodes are reached, by name, in Slurm's own word for it; ``nodes`` may be a list as
    Slurm writes it. Both ends ask, and so agree. Raises ``OSError`` with the words of scontrol.
    """
    done = subprocess.run(
        ["scontrol", "--oneliner", "show", "node", nodes],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"scontrol show node {nodes}: {(done.stderr or done.stdout).strip()}")
    found = {}
    for line in done.stdout.splitlines():
        name = re.search(r"\bNodeName=(\S+)", line)
        address = re.search(r"\bNodeAddr=(\S+)", line)
        if name is not None:
            found[name[1]] = address[1] if address is not None else name[1]
    return found


def main() -> None:
    """``python -m monarch.runtime.slurm_task PORT``"""
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


def _meaning(number: int) -> EndNotice | None:
    """Slurm sends SIGTERM for a job that was cancelled, and for one that may still run for a while
    before it gives way to another; SIGUSR1 is what we ask for before the time limit."""
    state, seconds = _time_left(os.environ.get("SLURM_JOB_ID", ""))
    if number == signal.SIGUSR1:
        return EndNotice("the time limit of its Slurm job", seconds)
    if state != "RUNNING":
        return None
    return EndNotice("its Slurm job gives way to another", seconds, is_last=True)


def _time_left(job: str) -> tuple[str, float | None]:
    """The state of a job, and the seconds until Slurm ends it, as far as it says."""
    try:
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%T|%L"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_ASK_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "", None
    state, _, left = done.stdout.strip().partition("|")
    return state, limit_seconds(left)


def limit_seconds(text: str) -> float | None:
    """Seconds of a time as Slurm writes it; nothing for words, as UNLIMITED."""
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
