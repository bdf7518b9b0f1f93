"""A real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.job.cleaner import clean_up_after_us
from tests.support import wait_for

num_uses = 0  # by tests of this process
_UP_SECONDS = 100.0
# Its own end is that of the daemons.
_CLUSTER = """
import os, signal, sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(**node)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with open(sys.argv[1] + ".new", "w") as file:
    file.write(cluster.address)
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


class RayCluster:
    """Skips the test where Ray is not installed."""

    @staticmethod
    def shared() -> RayCluster:
        """One for the whole test process: it takes 10 s to come up. It ends with that."""
        global num_uses
        num_uses += 1
        return _only()

    def __init__(self) -> None:
        pytest.importorskip("ray", reason="no Ray here: `tools/system.sh` installs it")
        folder = Path(tempfile.mkdtemp(prefix="mt-ray-", dir="/tmp"))
        clean_up_after_us(
            folder, 'kill $(cat "$folder/pid"); sleep 5; pkill -9 -s $(cat "$folder/pid")'
        )
        with open(folder / "log", "wb") as log:
            # No child of ours: it serves all tests, and each is asked for what it leaves.
            started = subprocess.run(
                ["sh", "-c", 'exec 3>&1 >&2; setsid "$@" 3>&- & echo $! >&3', "sh",
                 sys.executable, "-c", _CLUSTER, str(folder / "address")],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, check=True,
                env={**os.environ, "RAY_TMPDIR": str(folder)},
            )  # fmt: skip
        (folder / "pid").write_bytes(started.stdout)
        wait_for((folder / "address").exists, _UP_SECONDS, what=f"Ray, see {folder}/log")
        self.address = (folder / "address").read_text()


@functools.cache
def _only() -> RayCluster:
    return RayCluster()
