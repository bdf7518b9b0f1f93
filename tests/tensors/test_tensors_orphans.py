"""A client with an active mesh that is killed leaves nobody behind, and nobody holds its pipes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import Program, is_running, wait_for

SECONDS = 60.0  # Two or three, where the machine is ours.

SETUP = """
import ctypes, os, sys, threading
from pathlib import Path
import torch
from monarch import fetch_shard, inspect, remote
from monarch.actor import Actor, endpoint, this_host
procs = this_host().spawn_procs({"gpus": 2})
class Pid(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
pids = procs.spawn("pid", Pid).pid.call().get().values()
procs.activate()
x, rank = torch.ones(4), procs.rank_tensor("gpus")
inspect(x.reduce("gpus"))  # They have met.
def stand(x, rank, library, ranks):
    Path(FOLDER, str(os.getpid())).touch()
    if rank.item() in ranks:
        library(None).sleep(1000)
    return x
stand = remote(stand, propagate=lambda x, *rest: x.clone())
print("pids", *pids, flush=True)
"""

ACTS = {
    "operations are queued": "held = [x + n for n in range(50)]; threading.Event().wait()",
    "workers are in C and hold the GIL": (
        "fetch_shard(stand(x, rank, ctypes.PyDLL, (0, 1))).result()"
    ),
    "one is awaited in a collective": (
        "fetch_shard(stand(x, rank, ctypes.CDLL, (0,)).reduce('gpus')).result()"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
def test_a_killed_client_leaves_no_worker(
    program: Callable[..., Program], tmp_path: Path, act: str
) -> None:
    started = program(f"FOLDER = {str(tmp_path)!r}\n{SETUP}\n{ACTS[act]}")
    workers = [int(pid) for pid in started.line("pids", timeout=120).split()]
    family = [child.pid for child in psutil.Process(started.pid).children(recursive=True)]
    assert set(workers) < set(family)  # Zygotes are in it too.
    if "queued" not in act:
        wait_for(lambda: len(os.listdir(tmp_path)) == len(workers), SECONDS)
    started.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, family)), SECONDS, "all of them have ended")
    wait_for(lambda: started.has_closed, SECONDS, "nobody holds its output")
