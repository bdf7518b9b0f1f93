"""The dev loop over slow links, beside rsync: hosts 20 ms away, at 100 Mbit/s each.

    python benchmarks/links.py [--rounds N] [--milliseconds 20]     (as root, with sshd and rsync)

Three hosts in namespaces of their own (`tests/job/netlab.py`) and a fourth that drives them.
Prints a line each: the median, and what it is held against. rsync copies the same tree to the three
in parallel; an edit goes over ControlMaster connections that stand already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.job.netlab import NetLab  # noqa: E402 (from the checkout)

HOSTS = ("h1", "h2", "h3")
BYTES_PER_SECOND = 12.5e6
TREE_BYTES = 20_000_000

DRIVER = """
import os, shutil, statistics, subprocess, sys, time
from monarch.actor import Actor, endpoint
from monarch.job import SSHJob
from monarch_sync import Workspace

HOSTS = {hosts!r}
TREE = "/root/tree"
MASTER = ["-o", "ControlMaster=auto", "-o", "ControlPath=/root/cm-%h", "-o", "ControlPersist=60"]

class Rank(Actor):
    @endpoint
    def value(self):
        import edited
        return edited.value()

def make_tree():
    os.makedirs(TREE)
    num = 0
    lib = os.path.dirname(os.__file__)
    for folder, _, names in sorted(os.walk(lib)):
        for name in sorted(names):
            if name.endswith(".py") and num < {tree_bytes}:
                source = os.path.join(folder, name)
                target = os.path.join(TREE, "lib", os.path.relpath(source, lib))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(source, target)
                num += os.path.getsize(target)
    edit(0)
    return num

def edit(number):
    with open(TREE + "/edited.py", "w") as file:
        file.write("def value():\\n    return %d\\n" % number)

def traffic():
    line = next(line for line in open("/proc/net/dev") if "eth0" in line)
    return int(line.split()[9])

def rsync(options=()):
    ssh = " ".join(["ssh", *options])
    began = time.monotonic()
    running = [
        subprocess.Popen(["rsync", "-az", "-e", ssh, TREE + "/", host + ":/root/copy/"])
        for host in HOSTS
    ]
    assert not any([one.wait() for one in running])
    return time.monotonic() - began

def timed(command):
    began = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - began

def say(name, *values):
    print("RESULT", name, *values, flush=True)

if __name__ == "__main__":
    gateway = sys.argv[1] or None
    rounds = int(sys.argv[2])
    num = make_tree()
    if gateway is None:
        say("ssh", statistics.median(timed(["ssh", "h1", "true"]) for _ in range(5)))
    began = time.monotonic()
    job = SSHJob(sys.executable, gateway=gateway)
    job.add_mesh("trainers", HOSTS)
    try:
        procs = job.state(cached_path=None).trainers.spawn_procs()
        ranks = procs.spawn("ranks", Rank)
        ranks.initialized.get(timeout=60)
        say("apply", time.monotonic() - began)
        before, began = traffic(), time.monotonic()
        procs.sync_workspace(Workspace([TREE])).get(timeout=120)
        say("first", time.monotonic() - began)
        say("bytes", traffic() - before, num)
        assert set(ranks.value.call().get(timeout=60).values()) == {{0}}
        took = []
        for number in range(1, rounds + 1):
            time.sleep(0.3)
            edit(number)
            began = time.monotonic()
            procs.sync_workspace(Workspace([TREE])).get(timeout=60)
            took.append(time.monotonic() - began)
            assert set(ranks.value.call().get(timeout=60).values()) == {{number}}
        say("edit", statistics.median(took), min(took), sorted(took)[int(len(took) * 0.99)])
    finally:
        job.kill()
    if gateway is None:
        before = traffic()
        say("rsync-first", rsync())
        say("rsync-bytes", traffic() - before)
        rsync(MASTER)
        took = []
        for number in range(1, rounds + 1):
            edit(1000 + number)
            took.append(rsync(MASTER))
        say("rsync-edit", statistics.median(took), min(took))
    shutil.rmtree(TREE)
"""


def measured(lab: NetLab, gateway: str, rounds: int) -> dict[str, list[float]]:
    """Run the driver on host h0, and return its measurements by name."""
    lab.write("h0", "/root/driver.py", DRIVER.format(hosts=list(HOSTS), tree_bytes=TREE_BYTES))
    command = f"cd /root && {sys.executable} /root/driver.py '{gateway}' {rounds} 2>&1"
    done = subprocess.run(
        lab.inside("h0", ["sh", "-c", command]), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return {name: [float(value) for value in values] for _, name, *values in lines}


def show(what: str, value: float, limit: float, unit: str) -> None:
    print(f"{what:58} {value:7.2f} {unit}   {value / limit:5.2f} of {limit:.2f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="a round trip's")
    arguments = parser.parse_args()
    rounds, round_trip_seconds = arguments.rounds, arguments.milliseconds / 1000
    if shutil.which("rsync") is None:
        raise SystemExit("no rsync here: `tools/system.sh` installs it")
    link, load = f"{arguments.milliseconds:g} ms, 100 Mbit/s to each of 3", os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="links-", dir="/tmp"))
    lab = NetLab(folder, num_hosts=len(HOSTS))
    try:
        for name in HOSTS:
            lab.link(name, delay=round_trip_seconds / 2, rate=BYTES_PER_SECOND)
        print(f"load average {load:.1f} on {os.cpu_count()} cores; {link}")
        direct = measured(lab, "", rounds)
        door = measured(lab, HOSTS[0], rounds)
    finally:
        lab.close()
        shutil.rmtree(folder)
    ssh = direct["ssh"][0]
    show("`ssh host true`", ssh, ssh, "s ")
    show("apply until the first answer; 1.5 s + ssh", direct["apply"][0], 1.5 + ssh, "s ")
    show(
        "first sync of 20 MB; rsync -az to three",
        direct["first"][0],
        direct["rsync-first"][0],
        "s ",
    )
    show("bytes of it", direct["bytes"][0] / 1e6, direct["rsync-bytes"][0] / 1e6, "MB")
    edit = direct["edit"]
    show("save until all ranks run it; 8 round trips", edit[0], 8 * round_trip_seconds, "s ")
    show("... the quickest", edit[1], 8 * round_trip_seconds, "s ")
    show("... 99 % of them", edit[2], 8 * round_trip_seconds, "s ")
    show("the same; rsync -az with a ControlMaster", edit[0], direct["rsync-edit"][0], "s ")
    show("through a gateway: apply", door["apply"][0], 1.5 + ssh, "s ")
    show("through a gateway: bytes of the first sync; direct", door["bytes"][0] / 1e6,
         direct["bytes"][0] / 1e6, "MB")  # fmt: skip
    show("through a gateway: first sync; rsync -az to three", door["first"][0],
         direct["rsync-first"][0], "s ")  # fmt: skip
    show("through a gateway: an edit; 8 round trips", statistics.median(door["edit"]),
         8 * round_trip_seconds, "s ")  # fmt: skip


if __name__ == "__main__":
    main()
