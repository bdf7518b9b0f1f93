"""How a version comes to many readers, and those that stand still or die in the middle of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ActorError, this_host
from monarch.net.machine import machine_id
from monarch.rdma import SharedStateDict
from monarch.rdma.weights.state_dict import _directory, _look
from tests.rdma.weights import SHAPES, Reader, Trainer, numbered
from tests.support import wait_for

torch = pytest.importorskip("torch")

SECONDS = 90
KEYS = tuple(SHAPES)

pytestmark = pytest.mark.filterwarnings("ignore:no RDMA device leads")


def values(version: int) -> dict[str, Any]:
    return {key: numbered(shape, version).tolist() for key, shape in SHAPES.items()}


@pytest.fixture
def procs() -> Any:
    return this_host().spawn_procs({"gpus": 2}, preload=["torch"])


def pair(procs: Any, name: str, far: str = "") -> tuple[Any, Any]:
    trainer = procs.slice(gpus=0).spawn("trainer", Trainer, name, 0, 1)
    return trainer, procs.slice(gpus=1).spawn("reader", Reader, name, far)


@pytest.mark.long
def test_readers_of_one_host_share_one_copy() -> None:
    name = "one copy"
    procs = this_host().spawn_procs({"gpus": 7}, preload=["torch"])
    trainer = procs.slice(gpus=0).spawn("trainer", Trainer, name, 0, 1)
    readers = [
        procs.slice(gpus=rank).spawn(f"reader{rank}", Reader, name, f"host{rank // 4}")
        for rank in range(1, 7)
    ]
    for version in (1, 2, 3):
        trainer.publish.call_one(version).get(timeout=SECONDS)
        fetched = [reader.fetch.call_one(KEYS, "float32", version) for reader in readers]
        for one in fetched:
            assert one.get(timeout=SECONDS) == (version, values(version))
        copies = [reader.num_copies.call_one().get(timeout=SECONDS) for reader in readers]
        assert sum(copies[:3]) == version, "one of the first host's readers copies, each time"
        assert sum(copies[3:]) == version


def test_who_has_a_copy_passes_it_on_while_the_trainer_is_busy() -> None:
    name = "tree"
    shared = SharedStateDict(name)
    assert shared.publish({"w": torch.ones(8)}).get(timeout=SECONDS) == 1
    directory = _directory(name)
    snapshot = _look(directory, 1, 0, 2.0**40)
    assert snapshot.held is not None
    (held,) = snapshot.held

    def ask(host: str, seconds: float) -> Any:
        asked = directory.source.call_one(1, 0, host, f"reader of {host}", True, seconds)
        return asked.get(timeout=SECONDS)

    own = ask(machine_id(), 1.0)
    assert own.kind == "map", "the trainer's host maps it"
    first, second = ask("one", 1.0), ask("two", 1.0)
    assert [one.kind for one in (first, second)] == ["copy", "copy"]
    assert first.holder == second.holder == own.holder
    assert ask("three", 0.1) is None, "the trainer serves two at a time"
    place = held.place._replace(machine="one", key=7)
    copied = directory.copied.call_one(1, 0, "reader of one", place, held.buffer, 1)
    copied.get(timeout=SECONDS)
    third = ask("three", 10.0)
    assert (third.kind, third.place.key) == ("copy", 7), "the host that has it serves the next"
    again = ask("one", 1.0)
    assert (again.kind, again.place.key) == ("map", 7), "others there share the copy"


@pytest.mark.long
def test_a_reader_that_stands_still_holds_nobody_up_and_gets_a_whole_version(procs: Any) -> None:
    trainer, reader = pair(procs, "stands still")
    trainer.be_impatient.call_one().get(timeout=SECONDS)
    pid = reader.pid.call_one().get(timeout=SECONDS)
    trainer.publish.call_one(1).get(timeout=SECONDS)
    fetched = reader.fetch_and_stand_still.call_one(KEYS)
    try:
        wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
        for version in (2, 3):  # The third takes the half that the reader is in the middle of.
            assert trainer.publish.call_one(version).get(timeout=SECONDS) == version
    finally:
        os.kill(pid, signal.SIGCONT)
    assert fetched.get(timeout=SECONDS) == (3, values(3))


@pytest.mark.long
def test_a_trainer_that_is_killed_in_the_middle_of_a_fetch_is_told(
    procs: Any, faults: list[Any]
) -> None:
    trainer, reader = pair(procs, "killed", "elsewhere")
    pid = trainer.pid.call_one().get(timeout=SECONDS)
    size = 16 * 2**20
    trainer.publish_filled_once.call_one(1, size).get(timeout=SECONDS)
    assert reader.fetch_filled.call_one(size, 1).get(timeout=SECONDS) == [1]
    trainer.publish_filled_once.call_one(2, size).get(timeout=SECONDS)
    # It stands still, so that what has begun cannot have ended before it is killed.
    os.kill(pid, signal.SIGSTOP)
    fetched = reader.fetch_filled.call_one(size, 1)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: faults)
    with pytest.raises(ActorError, match=r"RemoteMemoryError.*(gone|ended)"):
        fetched.get(timeout=SECONDS)
