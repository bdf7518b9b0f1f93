"""One task of a Slurm job: the host agent of its node."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

from monarch.net.gate import is_loopback
from monarch.runtime.host_main import serve_host


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
    if "WORKSPACE_DIR" in os.environ and os.environ.get("SLURM_NNODES", "1") != "1":
        # Two hosts must not share one folder.
        os.environ["WORKSPACE_DIR"] = os.path.join(os.environ["WORKSPACE_DIR"], node)
    serve_host(f"{address}@{bind}", node)


if __name__ == "__main__":
    main()
