"""Who an actor is, how it ends itself, and how its log records say where they come from."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest

import monarch.actor
from monarch.actor import (
    Actor,
    ActorAddr,
    MeshFailure,
    ProcId,
    SupervisionError,
    Uid,
    context,
    current_actor_name,
    endpoint,
    this_host,
    this_proc,
)
from tests.support import wait_for

pytestmark = pytest.mark.in_a_world_too

SECONDS = 60.0


class Named(Actor):
    @endpoint
    def tell(self) -> dict[str, Any]:
        instance = context().actor_instance
        creator = instance.creator
        assert creator is not None
        return {
            "repr": repr(instance),
            "creator": (creator.name, repr(creator)),
            "above": repr(creator.creator),
            "id": instance.actor_id,
            "name": current_actor_name(),
        }

    @endpoint
    def child(self) -> Any:
        return this_proc().spawn("child", Named)

    @endpoint
    def log(self, text: str, *args: object) -> str:
        handler = logging.StreamHandler(io.StringIO())
        logger = logging.getLogger("tests.identity")
        logger.addHandler(handler)
        logger.error(text, *args)
        logger.removeHandler(handler)
        return str(handler.stream.getvalue())

    @endpoint
    def switch_prefix(self, is_on: bool) -> None:
        monarch.actor.config.prefix_python_logs_with_actor = is_on


def test_the_way_from_the_client_to_an_actor() -> None:
    named = this_host().spawn_procs({"gpus": 2}).spawn("the_name", Named)
    told = named.slice(gpus=1).tell.call_one().get(timeout=SECONDS)
    path = f"<root>.<{__name__}.Named the_name{{'gpus': 1/2}}>"
    assert told["repr"] == path
    assert told["creator"] == ("root", "<root>")
    assert told["above"] == "None"
    child = named.slice(gpus=1).child.call_one().get(timeout=SECONDS)
    below = child.tell.call_one().get(timeout=SECONDS)
    assert below["creator"] == ("the_name", path)
    assert below["above"] == "<root>"
    assert below["repr"] == f"{path}.<{__name__}.Named child>"


def test_the_address_of_an_actor() -> None:
    named = this_host().spawn_procs({"gpus": 2}).spawn("named", Named)
    first, second = (told["id"] for told in named.tell.call().get(timeout=SECONDS).values())
    assert isinstance(first, ActorAddr)
    assert first != second
    assert first.actor_name == first.label == "named"
    assert first.uid == first.pid == second.uid
    assert first.proc_name != second.proc_name
    assert first.proc_id == f"{first.proc_name}@{first.addr}"
    assert not first.is_root
    assert ActorAddr.from_string(str(first)) == first
    again = named.slice(gpus=0).tell.call_one().get(timeout=SECONDS)
    assert again["id"] == first
    assert again["name"] == str(first)


def test_the_client_is_an_instance_too() -> None:
    instance = context().actor_instance
    assert repr(instance) == "<root>"
    assert instance.actor_id.is_root
    assert instance.creator is None
    assert len(instance.proc_mesh) == 1
    with pytest.raises(RuntimeError, match="shutdown_context"):
        instance.stop()


def test_uids() -> None:
    assert Uid.anonymous() != Uid.anonymous()
    one = Uid.instance("worker")
    assert one.is_instance
    assert one.label == "worker"
    assert Uid.from_string(str(one)) == one
    assert str(Uid.from_string("service")) == "service"
    assert Uid.from_string("service").is_singleton
    largest = Uid.instance_from_value(2**64 - 1)
    assert largest.label is None
    assert Uid.from_string(str(largest)).instance_value == 2**64 - 1
    assert ProcId.from_string(str(one)) == ProcId(one)
    assert len({ProcId(one), ProcId.from_string(str(one))}) == 1
    for wrong in ("", "a b", "x<0>", "x<", "<>"):
        with pytest.raises(ValueError, match="uid"):
            Uid.from_string(wrong)
    with pytest.raises(ValueError, match="64 bits"):
        Uid.instance_from_value(2**64)


# Actors that end themselves


class Quits(Actor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.handled: list[int] = []

    @endpoint
    def quit(self, how: str, reason: str | None = None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "said so"

    @endpoint
    def note(self, number: int) -> int:
        with open(self.path, "a") as file:
            file.write(f"{number}\n")
        return number

    def __cleanup__(self, error: Exception | None) -> None:
        with open(self.path, "a") as file:
            file.write("failed\n" if error else "stopped\n")


def test_an_actor_that_stops_itself_is_no_failure(tmp_path: Any) -> None:
    path = tmp_path / "log"
    quits = this_host().spawn_procs().spawn("quits", Quits, str(path))
    assert quits.quit.call_one("stop").get(timeout=SECONDS) == "said so"
    with pytest.raises(SupervisionError, match="stopped"):
        quits.note.call_one(1).get(timeout=SECONDS)
    wait_for(lambda: path.exists() and path.read_text() == "stopped\n")


def test_one_rank_that_stops_leaves_the_others(tmp_path: Any) -> None:
    quits = this_host().spawn_procs({"gpus": 2}).spawn("quits", Quits, str(tmp_path / "log"))
    quits.slice(gpus=0).quit.call_one("stop").get(timeout=SECONDS)
    assert quits.slice(gpus=1).note.call_one(7).get(timeout=SECONDS) == 7


@pytest.mark.parametrize("how", ["kill", "abort"])
@pytest.mark.parametrize("reason", [None, "the disk is full"])
def test_an_actor_that_fails_itself_tells_its_owner(
    tmp_path: Any, faults: list[MeshFailure], how: str, reason: str | None
) -> None:
    path = tmp_path / "log"
    quits = this_host().spawn_procs().spawn("quits", Quits, str(path))
    assert quits.quit.call_one(how, reason).get(timeout=SECONDS) == "said so"
    wait_for(lambda: faults, SECONDS)
    assert (reason or "no reason provided") in faults[0].report()
    with pytest.raises(SupervisionError):
        quits.note.call_one(1).get(timeout=SECONDS)
    wait_for(lambda: path.exists() and path.read_text() == "failed\n")
    assert len(faults) == 1


# Log records


@pytest.fixture
def named() -> Any:
    return this_host().spawn_procs().spawn("named", Named)


def test_log_records_begin_with_their_actor(named: Any) -> None:
    text = named.log.call_one("HUH %d%%", 5).get(timeout=SECONDS)
    assert text == f"[actor=<root>.<{__name__}.Named named>] HUH 5%\n"


def test_log_records_without_a_message_stay_so(named: Any) -> None:
    assert named.log.call_one("").get(timeout=SECONDS) == "\n"


def test_log_records_can_go_without_their_actor(named: Any) -> None:
    named.switch_prefix.call_one(False).get(timeout=SECONDS)
    assert named.log.call_one("HUH").get(timeout=SECONDS) == "HUH\n"
    named.switch_prefix.call_one(True).get(timeout=SECONDS)
    assert named.log.call_one("HUH").get(timeout=SECONDS).endswith("] HUH\n")
