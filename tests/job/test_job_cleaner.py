"""What tests bring up ends with them, also where they are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job.netlab import NetLab
from tests.job.slurm_cluster import SlurmCluster
from tests.support import Program, wait_for

Programs = Callable[..., Program]

_MAKE = """
import os, signal, sys, tempfile
from pathlib import Path
from tests.job.cleaner import clean_up_after_us
from tests.job.netlab import NetLab
from tests.job.slurm_cluster import SlurmCluster
folder = Path({folder!r})
{make}
print("made", os.getpid(), flush=True)
signal.pause()
"""


def _kill(made: Program) -> None:
    os.kill(made.pid, signal.SIGKILL)
    made.wait()


def test_a_folder_goes_with_the_process_that_is_killed(program: Programs) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mt-clean-", dir="/tmp"))
    witness = Path(tempfile.mkdtemp(prefix="mt-clean-", dir="/tmp"))
    script = f'touch "{witness}/$(basename "$folder")"'
    made = program(_MAKE.format(folder=str(folder), make=f"clean_up_after_us(folder, {script!r})"))
    made.line("made")
    assert folder.exists()
    _kill(made)
    wait_for(lambda: not folder.exists(), what="the folder to go")
    (witness / folder.name).unlink()
    witness.rmdir()


@pytest.mark.system
def test_hosts_in_namespaces_go_with_the_process_that_is_killed(program: Programs) -> None:
    first, folder = (Path(tempfile.mkdtemp(prefix="mt-lab-", dir="/tmp")) for _ in range(2))
    try:
        NetLab(first, num_hosts=1).close()  # or this test is skipped
    finally:
        shutil.rmtree(first)
    made = program(_MAKE.format(folder=str(folder), make="lab = NetLab(folder, num_hosts=1)"))
    mark = f"mt{made.line('made')}h"
    assert mark in _said("ip", "netns", "list")
    _kill(made)
    wait_for(lambda: not folder.exists(), 30.0, what="the folder to go")
    assert mark not in _said("ip", "netns", "list")
    assert str(folder) not in Path("/proc/mounts").read_text()


@pytest.mark.system
def test_a_slurm_goes_with_the_process_that_is_killed(program: Programs) -> None:
    SlurmCluster.shared()  # or this test is skipped
    made = program(_MAKE.format(folder="", make="print('at', SlurmCluster(1).folder)"))
    folder = Path(made.line("at", 60.0))
    pids = [int(path.read_text()) for path in folder.glob("*.pid")]
    assert len(pids) == 3
    _kill(made)
    wait_for(lambda: not folder.exists(), 40.0, what="the folder to go")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
