"""A real Slurm on this machine, with a controller, nodes, key and ports of its own.

Several slurmd on one machine, each node with a loopback address. Nothing of the machine's own Slurm
or munge is used or changed, and all of it ends with ``close``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from monarch.tools.network import free_port
from tests.job.cleaner import clean_up_after_us
from tests.support import is_running, wait_for

_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_NUM_GPUS = 4
_AFTERWARDS = """
export SLURM_CONF="$folder/slurm.conf"
scancel --full --user="$(id -un)"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -z "$(squeue -h)" ] && break; sleep 1; done
kill $(cat "$folder"/*.pid); sleep 2; kill -9 $(cat "$folder"/*.pid)
"""


class SlurmCluster:
    """Skips the test where Slurm is not installed.

    Partitions: ``debug``; ``low``, whose jobs give way to those of ``urgent``, with a grace of
    30 s; ``brief``, whose jobs may run for 5 minutes.
    """

    @staticmethod
    @functools.cache
    def shared() -> SlurmCluster:
        """One for the whole test process, which takes seconds to come up."""
        cluster = SlurmCluster()
        atexit.register(cluster.close)
        return cluster

    def __init__(self, num_nodes: int = 3) -> None:
        search = f"{os.environ['PATH']}:/usr/sbin"
        programs = {name: shutil.which(name, path=search) for name in _NEEDED}
        if missing := [name for name, path in programs.items() if path is None]:
            pytest.skip(f"no {', '.join(missing)} here: `tools/system.sh` installs Slurm")
        if os.getuid() != 0:
            pytest.skip("Slurm's daemons run as root here")
        # A short path: it is part of a socket's.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="mt-sl-", dir="/tmp"))
        clean_up_after_us(folder, _AFTERWARDS)
        self.num_nodes = num_nodes
        self.conf = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._write_settings()
        folder.chmod(0o755)  # munged wants its socket where all can reach it
        self._start(
            "munged", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munge/munged.log",
            f"--seed-file={folder}/munge/seed", "--force",
        )  # fmt: skip
        self._start("slurmctld", "-f", str(self.conf))
        for number in range(1, num_nodes + 1):
            self._start("slurmd", "-f", str(self.conf), "-N", f"n{number}")
        wait_for(self._is_up, 60.0, what="all nodes to be idle")
        # The first pass of the scheduler comes seconds after the start.
        wait_for(lambda: self.run("srun", "-N", str(num_nodes), "true") == 0, 60.0, what="srun")

    def _write_settings(self) -> None:
        folder, ports = self.folder, [free_port() for _ in range(self.num_nodes + 1)]
        for name in ("state", "munge", *(f"spool-n{n}" for n in range(1, self.num_nodes + 1))):
            (folder / name).mkdir(mode=0o700)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        for gpu in range(_NUM_GPUS):
            # Null devices for GPUs: Slurm hands out only what is a device.
            subprocess.run(["mknod", str(folder / f"gpu{gpu}"), "c", "1", "3"], check=True)
        (folder / "gres.conf").write_text(
            f"AutoDetect=off\nName=gpu File={folder}/gpu[0-{_NUM_GPUS - 1}]\n"
        )
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        machine = socket.gethostname()
        nodes = "".join(
            f"NodeName=n{number} NodeAddr=127.0.0.{30 + number} NodeHostname={machine} "
            f"Port={ports[number]} CPUs=8 RealMemory=4000 Gres=gpu:{_NUM_GPUS} State=UNKNOWN\n"
            for number in range(1, self.num_nodes + 1)
        )
        self.conf.write_text(
            f"""ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=5,bf_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=15
KillWait=2
MinJobAge=60
CommunicationParameters=NoCtldInAddrAny
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF
PartitionName=brief Nodes=ALL MaxTime=5 PriorityTier=5 PreemptMode=OFF
"""
        )

    def _start(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") or program
        subprocess.run([path, *arguments], env=self.environment, check=True)

    def run(self, *command: str) -> int:
        """The status of a command of Slurm's."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, timeout=60, check=False
        ).returncode

    def said(self, *command: str) -> str:
        """Returns the output of a command of Slurm's."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip()

    def _is_up(self) -> bool:
        nodes = self.said("sinfo", "-h", "-N", "-p", "debug", "-t", "idle", "-o", "%N")
        return len(nodes.split()) == self.num_nodes

    def lose(self, node: str) -> None:
        """A node crashes: its daemon and all that runs on it end, without a word."""
        daemon = int((self.folder / f"slurmd-{node}.pid").read_text())
        on_it = [
            process for process in psutil.process_iter(["environ"])
            if (process.info["environ"] or {}).get("SLURMD_NODENAME") == node
            and (process.info["environ"] or {}).get("SLURM_CONF") == str(self.conf)
        ]  # fmt: skip
        # What looks after a step first: it would tell of the step's end.
        keepers = {
            one.pid for process in on_it for one in _parents(process) if "slurmstepd" in one.name()
        }
        for pid in (daemon, *keepers, *(process.pid for process in on_it)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.folder / f"slurmd-{node}.pid").unlink()

    def clear(self) -> None:
        """Cancel what runs, and wait until all nodes are free."""
        self.run("scancel", "--full", f"--user={getpass.getuser()}")
        wait_for(self._is_up, 60.0, what="all nodes to be idle")

    def close(self) -> None:
        """End all daemons, jobs first."""
        if not self.folder.exists():
            return
        self.run("scancel", "--full", f"--user={getpass.getuser()}")
        pids = [
            int(path.read_text())
            for pattern in ("slurmd-*.pid", "slurmctld.pid", "munged.pid")
            for path in self.folder.glob(pattern)
        ]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in filter(is_running, pids):
                os.kill(pid, number)
            with contextlib.suppress(AssertionError):  # A daemon may wait for what runs.
                wait_for(lambda: not any(map(is_running, pids)), 10.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.parents()
    return []
