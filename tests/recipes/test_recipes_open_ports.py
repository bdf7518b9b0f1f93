"""Nobody beyond the machine reaches what a training on one machine opens: it has no passwords."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, this_host
from monarch.job import ProcessJob
from monarch.runs import Record
from monarch.spmd import setup_torch_elastic_env
from monarch.spmd.surroundings import hosts_beyond, use_interface
from monarch_recipes.ddp import DDPConfig, DDPTrainer
from monarch_recipes.rendezvous import RendezvousError, open_store
from tests.listening import listened_at, outer_address
from tests.support import wait_for

LOOPBACK = {"127.0.0.1"}
HERE = outer_address()
needs_a_network = pytest.mark.skipif(HERE is None, reason="this machine has loopback only")


class Listening(Actor):
    @endpoint
    def addresses(self) -> set[str]:
        return listened_at(os.getpid())

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def gather(self) -> list[int]:
        """What all ranks have, by a group of whatever the environment says."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        ranks: list[int] = [-1] * dist.get_world_size()
        dist.all_gather_object(ranks, current_rank().rank)
        return ranks


@pytest.fixture(scope="session", autouse=True)
def opened_before() -> None:
    """The first store of a process opens a pipe that torch keeps for good."""
    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def two_hosts() -> Iterator[ProcMesh]:
    """Two procs, each on a host of its own, on this machine."""
    job = ProcessJob({"trainers": 2})
    try:
        yield job.state(cached_path=None).trainers.spawn_procs({"gpus": 1})
    finally:
        job.kill()


def addresses(procs: ProcMesh) -> set[str]:
    found = procs.spawn("listening", Listening).addresses.call().get(timeout=60)
    return set().union(*found.values())


def is_refused(address: str | None, port: int) -> bool:
    with socket.socket() as stranger:
        stranger.settimeout(5)
        return stranger.connect_ex((address, port)) == errno.ECONNREFUSED


@needs_a_network
def test_a_stranger_cannot_reach_a_store_of_ranks_that_are_all_here() -> None:
    store, address, port = open_store()
    store.set("default_pg/rank0", "where rank 0 is")
    assert address == "127.0.0.1"
    assert is_refused(HERE, port)
    client = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
    assert client.get("default_pg/rank0") == b"where rank 0 is"


@needs_a_network
def test_a_store_for_other_machines_listens_at_one_address() -> None:
    assert HERE is not None
    store, address, port = open_store(peers=(HERE,))
    assert address == HERE
    assert is_refused("127.0.0.1", port)
    client = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"port {port} of .* is in use"):
            open_store(port)


@pytest.mark.long
def test_ranks_of_ddp_on_two_hosts_of_a_machine(two_hosts: ProcMesh, tmp_path: Path) -> None:
    assert hosts_beyond(two_hosts) == ()
    trainers = two_hosts.spawn("trainer", DDPTrainer, DDPConfig(device="cpu"), tmp_path)
    store = trainers.flatten("rank").slice(rank=0).open_store.call_one().get(timeout=60)
    setup_torch_elastic_env(two_hosts)
    path, port = store
    assert port == 0, "a store that listens"
    folder = Path(path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    trainers.setup.call(store).get(timeout=60)
    # Gloo's own.
    assert addresses(two_hosts) == LOOPBACK
    # Of an earlier group the ranks may still hold the file.
    again = trainers.flatten("rank").slice(rank=0).open_store.call_one().get(timeout=60)
    assert again != store
    trainers.rejoin.call(again).get(timeout=60)
    assert Path(again[0]).exists()
    two_hosts.stop().get(timeout=60)
    wait_for(lambda: not Path(again[0]).exists())


@pytest.mark.long
def test_ranks_that_are_killed_leave_no_store(
    two_hosts: ProcMesh, tmp_path: Path, faults: list[object]
) -> None:
    trainers = two_hosts.spawn("trainer", DDPTrainer, DDPConfig(device="cpu"), tmp_path)
    store = trainers.flatten("rank").slice(rank=0).open_store.call_one().get(timeout=60)
    setup_torch_elastic_env(two_hosts)
    trainers.setup.call(store).get(timeout=60)
    pid = two_hosts.flatten("rank").slice(rank=0).spawn("pid", Listening).pid.call_one().get(60)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(store[0]).exists() and bool(faults))


@pytest.mark.long
def test_a_port_that_was_chosen_is_listened_at(tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = DDPConfig(device="cpu", master_port=port)
    trainers = procs.spawn("trainer", DDPTrainer, config, tmp_path)
    assert trainers.open_store.call_one().get(timeout=60) == ("127.0.0.1", port)


@pytest.mark.long
def test_gloo_of_a_script_s_own_ranks_listens_on_loopback() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    setup_torch_elastic_env(procs)
    listening = procs.spawn("listening", Listening)
    assert listening.gather.call().get(timeout=60).values() == [[0, 1], [0, 1]]
    # torch opens the store in rank 0 by itself, on all interfaces.
    assert listening.slice(gpus=1).addresses.call_one().get(timeout=60) == LOOPBACK


def test_what_the_user_says_of_interfaces_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "to be as it was afterwards")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    use_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_replica_group_here_listens_on_loopback(tmp_path: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed")
    from monarch_recipes.fault_tolerant import FaultTolerantConfig, run

    seen: dict[str, set[str]] = {}

    class Watching:
        def message(self, text: str) -> None:
            """Nothing to see."""

        def alarm(self, text: str) -> None: ...

        def phase(self, text: str) -> None: ...

        def saved(self, step: int) -> None: ...

        def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
            if record.is_stopping:
                return  # By the time that the last steps are told, all may have ended.
            rows = [
                json.loads(line)
                for line in (record.folder / "events.jsonl").read_text().splitlines()
            ]
            for row in rows:
                for pid in [row.get("pid"), *row.get("pids", ())]:
                    if pid:
                        seen.setdefault(row["kind"], set()).update(listened_at(pid))
            record.stop()

    record = Record(tmp_path / "run", Watching(), procs_per_host=4)
    run(FaultTolerantConfig(hidden_size=16, num_steps=10_000), this_host(), record)
    assert seen["lighthouse"] == seen["started"] == LOOPBACK
