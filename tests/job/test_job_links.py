"""Hosts with links of their own: slow ones, one door for all, links that are cut and healed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.job.netlab import NetLab
from tests.support import wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(170)]

needs_torchft = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="pip install 'monarch-loop[ft]'"
)

ROOT = Path(__file__).parents[2]
TRAINERS = ("h1", "h2", "h3")
ROUND_TRIP_SECONDS = 0.02
BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s
CUT_SECONDS = 5.0
ENDED_SECONDS = 150.0

_PROJECT = """
[job]
kind = "ssh"
hosts = {{ trainers = {hosts} }}
[job.ssh]
python = "{python}"
"""

_BEGIN = """
import os, sys, time
from monarch.job import SSHJob
from tests.actors import Echo

def bytes_out():
    line = next(line for line in open("/proc/net/dev") if "eth0" in line)
    return int(line.split()[9])

def say(*words):
    print(*words, flush=True)

def wait():
    sys.stdin.readline()

if __name__ == "__main__":
    job = SSHJob(sys.executable, gateway={gateway!r})
    job.add_mesh("trainers", {hosts!r})
    try:
        state = job.state(cached_path=None)
        procs = state.trainers.spawn_procs()
        echo = procs.spawn("echo", Echo)
        say("first", echo.echo.call(3).get(timeout=60).values())
        {then}
    finally:
        job.kill()
        say("killed")
"""


@pytest.fixture
def lab() -> Iterator[NetLab]:
    if sys.executable.startswith("/tmp/"):
        pytest.skip("the hosts have a /tmp of their own: check out elsewhere")
    folder = Path(tempfile.mkdtemp(prefix="mt-lab-", dir="/tmp"))
    try:
        made = NetLab(folder, num_hosts=len(TRAINERS))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def links(lab: NetLab) -> Iterator[None]:
    """Each host is 20 ms away, at 100 Mbit/s."""
    for name in TRAINERS:
        lab.link(name, delay=ROUND_TRIP_SECONDS / 2, rate=BYTES_PER_SECOND)
    yield
    for name in TRAINERS:
        left = lab.run(name, ["sh", "-c", "ps -e -o args | grep '[h]ost_main' || true"])
        assert not left, f"a host agent is left on {name}: {left}"


class Driver:
    """A program on h0."""

    def __init__(self, lab: NetLab, command: str) -> None:
        words = f"cd {ROOT} && {command}"
        self.process = lab.start(
            "h0", ["sh", "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.said = ""

    def line(self, begin: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith(begin):
                return line.removeprefix(begin).strip()
        raise AssertionError(f"it ended without saying {begin!r}:\n{self.said}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> str:
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        self.process.wait()
        return self.said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


Drive = Callable[..., Driver]


@pytest.fixture
def drive(lab: NetLab) -> Iterator[Drive]:
    made: list[Driver] = []

    def drive(then: str, gateway: str | None = None) -> Driver:
        body = "\n        ".join(then.strip().splitlines())
        text = _BEGIN.format(gateway=gateway, hosts=list(TRAINERS), then=body)
        lab.write("h0", "/root/driver.py", text)
        made.append(Driver(lab, f"PYTHONPATH=. exec {sys.executable} -u /root/driver.py"))
        return made[-1]

    yield drive
    for driver in made:
        driver.close()


@pytest.fixture
def one_door(lab: NetLab) -> Iterator[str]:
    """The one host that h0 reaches."""
    behind = TRAINERS[1:]
    for name in behind:
        lab.run("h0", ["ip", "route", "add", "blackhole", f"{lab.address(name)}/32"])
    yield TRAINERS[0]
    for name in behind:
        lab.run("h0", ["ip", "route", "del", "blackhole", f"{lab.address(name)}/32"])


def test_behind_one_door_contents_cross_the_link_once(drive: Drive, one_door: str) -> None:
    driver = drive(
        """
data = os.urandom(1_000_000)
before = bytes_out()
answers = echo.echo.call(data).get(timeout=60).values()
say("call", bytes_out() - before, answers == [data] * 3)

from monarch_sync import Workspace
os.makedirs("/root/tree", exist_ok=True)
for number in range(8):
    with open(f"/root/tree/{number}.bin", "wb") as file:
        file.write(os.urandom(250_000))
before = bytes_out()
procs.sync_workspace(Workspace(["/root/tree"])).get(timeout=60)
say("sync", bytes_out() - before)
""",
        gateway=one_door,
    )
    assert driver.line("first") == "[3, 3, 3]"
    num_bytes, is_whole = driver.line("call").split()
    assert is_whole == "True"
    assert 1_000_000 < int(num_bytes) < 1_300_000
    assert 2_000_000 < int(driver.line("sync")) < 2_600_000
    driver.line("killed")
    assert driver.rest()
    assert driver.process.returncode == 0


def test_a_firewall_before_a_host_is_told_of_and_nothing_is_left(lab: NetLab, drive: Drive) -> None:
    """One can log in, but nothing comes from the port of the host agent."""
    rule = ["sport", "22222", "ipproto", "tcp", "blackhole"]
    lab.run("h2", ["ip", "rule", "add", *rule])
    try:
        said = " ".join(drive("say('never')").rest().split())
    finally:
        lab.run("h2", ["ip", "rule", "del", *rule])
    assert "JobError: cannot reach the host agent on h2: timed out at tcp://h2:22222" in said
    assert "though one can log in: is there a firewall?" in said


def test_a_doctor_finds_hosts_that_do_not_reach_each_other(lab: NetLab) -> None:
    lab.write("h0", "/root/project/monarch.toml", _PROJECT.format(
        hosts=list(TRAINERS), python=sys.executable))  # fmt: skip
    lab.run("h2", ["ip", "route", "add", "blackhole", f"{lab.address('h3')}/32"])
    command = f"cd /root/project && {sys.executable} -m monarch.cli.main doctor; echo status $?"
    try:
        said = " ".join(lab.run("h0", ["sh", "-c", command]).split())
    finally:
        lab.run("h2", ["ip", "route", "del", "blackhole", f"{lab.address('h3')}/32"])
    assert "status 1" in said
    assert "h2 cannot connect to it" in said
    assert "Open TCP between the hosts" in said


@pytest.fixture
def aside(lab: NetLab) -> dict[str, str]:
    """Each host has another interface, at which no other reaches it: it takes itself to be at the
    address there, and has its default route there. The addresses, by host."""
    found = {name: f"203.0.113.{10 + number}" for number, name in enumerate(TRAINERS)}
    for name, address in found.items():
        for words in (
            "link add net1 type veth peer name net1p", "link set net1p up", "link set net1 up",
            f"addr add {address}/24 dev net1", "route add default via 203.0.113.1",
        ):  # fmt: skip
            lab.run(name, ["ip", *words.split()])
        hosts = lab.run(name, ["cat", "/etc/hosts"])
        lab.write(name, "/etc/hosts", hosts.replace(lab.address(name), address))
        assert address in lab.run(name, ["getent", "hosts", name])
    return found


def test_hosts_meet_at_the_interfaces_at_which_they_reach_each_other(
    lab: NetLab, drive: Drive, aside: dict[str, str]
) -> None:
    driver = drive(
        """
from monarch.actor import Actor, endpoint
class Rank(Actor):
    @endpoint
    def ask(self, all):
        return all.echo.call(7).get(timeout=60).values()
    @endpoint
    def address(self, peers):
        from monarch.tools.network import address_for
        return address_for(peers)
ranks = procs.spawn("ranks", Rank)
say("asked", ranks.ask.call(echo).get(timeout=60).values())
say("at", *ranks.address.call({hosts!r}).get(timeout=60).values())
""".replace("{hosts!r}", repr([lab.address(name) for name in TRAINERS]))
    )
    assert driver.line("first") == "[3, 3, 3]"
    assert driver.line("asked") == str([[7, 7, 7]] * 3)
    assert driver.line("at").split() == [lab.address(name) for name in TRAINERS]
    driver.line("killed")


def test_a_doctor_says_at_which_interface_hosts_reach_each_other(
    lab: NetLab, aside: dict[str, str]
) -> None:
    _project(lab)
    said = " ".join(_monarch(lab, "doctor").split())
    for name in TRAINERS:
        assert f"{name} at {lab.address(name)} (eth0)" in said
    assert "it has several interfaces: eth0, net1" in said


@pytest.mark.parametrize("door", ["h1", None])
def test_a_link_that_is_cut_for_five_seconds_fails_nothing(
    drive: Drive, lab: NetLab, door: str | None
) -> None:
    driver = drive(
        'say("cut"); wait()\nsay("then", echo.echo.call(5).get(timeout=60).values())', door
    )
    driver.line("cut")
    lab.link("h0", loss=1.0)
    driver.go_on()
    time.sleep(CUT_SECONDS)  # How long the link is cut is what the test is about.
    lab.link("h0")
    assert driver.line("then") == "[5, 5, 5]"
    driver.line("killed")


def test_the_dev_loop_over_slow_links(lab: NetLab) -> None:
    _project(lab)
    lab.write("h0", "/root/project/task.py", "def value():\n    return 1\n")
    try:
        _monarch(lab, "apply")
        assert "3" in _monarch(lab, "sync")
        lab.write("h0", "/root/project/task.py", "def value():\n    return 2\n")
        assert "1 file → 3 hosts" in _monarch(lab, "sync")
        for name in TRAINERS:
            (copy,) = lab.run(name, ["find", "/tmp", "-name", "task.py"]).splitlines()
            assert "return 2" in lab.run(name, ["cat", copy])
    finally:
        _monarch(lab, "kill")


def test_ddp_goes_on_where_a_link_is_cut_and_healed(lab: NetLab) -> None:
    _project(lab)
    try:
        _monarch(lab, "apply")
        run = Driver(
            lab, f"cd /root/project && {_MONARCH} run ddp num_epochs=2 global_batch_size=96 2>&1"
        )
        try:
            wait_for(lambda: _num_steps(lab) > 5, timeout=90, what="the training to begin")
            lab.link("h2", loss=1.0)
            time.sleep(CUT_SECONDS)  # As long as the link is to be cut.
            lab.link("h2", delay=ROUND_TRIP_SECONDS / 2, rate=BYTES_PER_SECOND)
            said = run.rest()
            assert run.process.returncode == 0, said
        finally:
            run.close()
    finally:
        _monarch(lab, "kill")


def test_ddp_goes_on_when_a_host_that_has_crashed_is_back(lab: NetLab) -> None:
    _project(lab)
    try:
        _monarch(lab, "apply")
        command = "run ddp --on-host-loss wait num_epochs=2 global_batch_size=96 checkpoint_every=4"
        run = Driver(lab, f"cd /root/project && {_MONARCH} {command} 2>&1")
        try:
            wait_for(lambda: _num_steps(lab) > 5, timeout=90, what="the training to begin")
            lab.crash("h3")
            run.line("waiting for the hosts to come back")
            lab.revive("h3")
            said = run.rest()
            assert run.process.returncode == 0, said
            assert "resumed from" in said
            assert "all ranks train again" in said
        finally:
            run.close()
    finally:
        _monarch(lab, "kill")


@pytest.fixture
def replicas(lab: NetLab) -> Iterator[Replicas]:
    _project(lab)
    try:
        _monarch(lab, "apply")
        made = Replicas(lab)
        try:
            yield made
        finally:
            made.driver.close()
    finally:
        _monarch(lab, "kill")


class Replicas:
    """A run of three replica groups, one on each host, which goes on until it is stopped."""

    def __init__(self, lab: NetLab) -> None:
        self._lab = lab
        options = "num_groups=3 hidden_size=16 num_steps=100000 checkpoint_every=10"
        command = f"run fault_tolerant --on-host-loss wait {options}"
        self.driver = Driver(lab, f"cd /root/project && {_MONARCH} {command} 2>&1")

    def wait_until_all_train(self) -> None:
        """Ten steps from now on in which each group takes part."""
        began = len(self._noted("metrics"))

        def do_all() -> bool:
            news = self._noted("metrics")[began:]
            return sum(step.get("participants") == len(TRAINERS) for step in news) >= 10

        def told() -> str:
            events = [f"{event['time']:.1f} {event['text']}" for event in self._noted("events")]
            return "\n".join(["all groups to train", *events[-30:]])

        wait_for(do_all, timeout=300, what=told)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._noted("events") if event["kind"] == kind]

    def _noted(self, name: str) -> list[dict[str, Any]]:
        text = self._lab.run(
            "h0", ["sh", "-c", f"cat /dev/null /root/project/runs/latest/{name}.jsonl || true"]
        )
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]

    def stop(self) -> str:
        (begun,) = self.events("begun")
        self._lab.run("h0", ["kill", "-INT", str(begun["pid"])])
        return self.driver.rest()


@needs_torchft
@pytest.mark.timeout(700)  # Libraries that are imported take long under load.
def test_replica_groups_go_on_where_a_link_is_cut_and_healed(
    lab: NetLab, replicas: Replicas
) -> None:
    replicas.wait_until_all_train()
    lab.link("h2", loss=1.0)
    time.sleep(CUT_SECONDS)  # As long as the link is to be cut.
    lab.link("h2", delay=ROUND_TRIP_SECONDS / 2, rate=BYTES_PER_SECOND)
    replicas.wait_until_all_train()
    assert "3 of 3 groups" in replicas.stop()
    assert not replicas.events("given_up")


@needs_torchft
@pytest.mark.timeout(700)  # Libraries that are imported take long under load.
def test_a_replica_group_is_back_when_its_host_that_has_crashed_is(
    lab: NetLab, replicas: Replicas
) -> None:
    replicas.wait_until_all_train()
    lab.crash("h3")
    wait_for(lambda: replicas.events("died"), timeout=60, what="the loss to be noticed")
    lab.revive("h3")
    replicas.wait_until_all_train()
    said = replicas.stop()
    assert "3 of 3 groups" in said
    assert [event["group"] for event in replicas.events("respawned")] == [2]


_MONARCH = f"{Path(sys.executable).with_name('monarch')}"


def _project(lab: NetLab) -> None:
    lab.run("h0", ["rm", "-rf", "/root/project"])
    hosts = str(list(TRAINERS)).replace("'", '"')
    text = _PROJECT.format(hosts=hosts, python=sys.executable)
    lab.write("h0", "/root/project/monarch.toml", text)


def _monarch(lab: NetLab, command: str) -> str:
    done = subprocess.run(
        lab.inside("h0", ["sh", "-c", f"cd /root/project && {_MONARCH} {command} 2>&1"]),
        text=True, capture_output=True, check=False, timeout=ENDED_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def _num_steps(lab: NetLab) -> int:
    """How far the newest run has come, by its metrics."""
    count = "cat $(find /root/project -name metrics.jsonl) /dev/null | wc -l"
    return int(lab.run("h0", ["sh", "-c", count]))
