"""Copies in the host's memory, beside a forward and a backward pass."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from monarch.runs.hold import copy_beside
from monarch.runs.hold.copy_beside import (
    CopyBeside,
    NoRoom,
    begin_copy,
    have_gpus_room,
    is_quick_copy,
    why_no_room,
)
from monarch.runs.hold.copy_room import HostRoom, room_in_cgroups, verdict_on_room
from monarch.runs.hold.run_memory import newest_of
from monarch.runs.hold.state_copies import Changed, PutBack, keep
from monarch.runs.hold.state_memory import (
    SMALL,
    WHOLE,
    CopyPlace,
    HalfMarks,
    StateMemory,
    copies_in,
)
from monarch.runtime.hosts.held_memory import MARKS, MemoryPlace
from tests.support import wait_for

GIB = 2**30


class Trainer:
    """Some weights, an optimizer that has made a step, and a buffer that each pass changes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.memory = StateMemory("", "0")
        self.copy: CopyBeside | None = None
        self.step()

    def __state__(self) -> dict[str, Any]:
        return {
            "step": 41,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def backward(self) -> None:
        self.model(torch.randn(4, 8)).square().mean().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def begin(self, held: list[Any], **settings: Any) -> CopyBeside:
        self.copy = begin_copy(self.memory, self.__state__(), held, 3, **settings)
        return self.copy

    def values(self) -> list[torch.Tensor]:
        states = self.optimizer.state.values()
        moments = [one[name] for one in states for name in sorted(one)]
        return [one.clone() for one in (*self.model.state_dict().values(), *moments)]

    def place(self) -> CopyPlace:
        """Its newest copy, as another process finds it."""
        size = os.fstat(self.memory._fd).st_size
        marks = MARKS.unpack(os.pread(self.memory._fd, MARKS.size, 0))
        return copies_in([MemoryPlace("0", os.getpid(), self.memory._fd, size, marks)])[-1]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No copy is quick, and none is made before the test opens this."""
    monkeypatch.setattr(copy_beside, "QUICK_SECONDS", -1.0)
    opened = threading.Event()
    before = CopyBeside._copy_in_pieces

    def copied(self: CopyBeside, source: Any, there: Any) -> None:
        assert opened.wait(60.0)
        before(self, source, there)

    monkeypatch.setattr(CopyBeside, "_copy_in_pieces", copied)
    yield opened
    opened.set()


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    yield made
    if made.copy is not None:
        made.copy.close()
    made.memory.close()


def kept(trainer: Trainer, **settings: Any) -> PutBack:
    return keep(trainer, functools.partial(trainer.begin, **settings))


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_an_optimizer_waits_at_its_door_for_the_copy(
    trainer: Trainer, gate: threading.Event
) -> None:
    before = trainer.values()
    put_back = kept(trainer)
    trainer.backward()  # which need not wait
    stepping = threading.Thread(target=trainer.optimizer.step)
    stepping.start()
    assert trainer.copy is not None
    wait_for(lambda: trainer.copy and trainer.copy._has_stepped, 60.0, "it is at the door")
    assert torch.equal(next(trainer.model.parameters()), before[0])
    gate.set()
    stepping.join(60.0)
    assert not are_equal(trainer.values(), before)
    put_back()
    assert are_equal(trainer.values(), before)
    assert trainer.model[0].weight.grad is None


def test_what_fails_before_the_door_has_nothing_to_write_back(
    trainer: Trainer, gate: threading.Event
) -> None:
    before = trainer.values()
    put_back = kept(trainer)
    trainer.backward()
    assert put_back() == []  # It does not even wait for the copy.
    assert are_equal(trainer.values(), before)
    assert all(one.grad is None for one in trainer.model.parameters())


@pytest.mark.parametrize("how", ["counted", "summed", "sampled"])
def test_a_weight_that_the_step_wrote_into_before_it_was_copied_is_not_put_back(
    trainer: Trainer, gate: threading.Event, how: str
) -> None:
    put_back = kept(trainer, sums_seconds=0.0) if how == "sampled" else kept(trainer)
    with torch.no_grad():
        weight = trainer.model[0].weight if how == "counted" else trainer.model[0].weight.data
        weight.mul_(0.5)
    gate.set()
    assert trainer.copy is not None
    trainer.copy.wait()
    with pytest.raises(Changed, match="had written into weights before they were copied"):
        put_back()
    if how == "summed":  # A process that dies then cannot say so; who reads it sees it.
        with pytest.raises(ValueError, match="had written into it"):
            trainer.place().read()
    elif how == "counted":
        assert trainer.place().marks.stage == SMALL
    else:
        with pytest.raises(IndexError):
            trainer.place()  # No other process goes on from it.


def test_a_copy_is_quick_by_its_share_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copy_beside._speeds, "cpu", 1e9)
    some = [torch.empty(25_000_000, dtype=torch.uint8)]  # 25 ms
    assert is_quick_copy(some, 0)
    assert not is_quick_copy(some * 4, 0)
    assert is_quick_copy(some * 4, 0, call_seconds=1.0)
    assert not is_quick_copy(some * 4, 100_000_000, call_seconds=1.0)  # Memory is to be found.


def test_a_quick_copy_is_made_before_the_call_whatever_that_does(trainer: Trainer) -> None:
    before = trainer.values()
    put_back = kept(trainer)
    assert trainer.copy is not None
    assert trainer.place().marks.stage == WHOLE
    trainer.model[0].weight.data.mul_(0.5)
    trainer.model[0].weight.data = torch.zeros(8, 8)
    trainer.step()
    put_back()
    assert are_equal(trainer.values(), before)


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_copy_serves_again_while_the_restored_state_has_not_changed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, is_quick: bool
) -> None:
    if not is_quick:
        monkeypatch.setattr(copy_beside, "QUICK_SECONDS", -1.0)
    held: list[Any] = []

    def begin(tensors: list[Any]) -> CopyBeside:
        held[:] = tensors
        return trainer.begin(tensors)

    put_back = keep(trainer, begin)
    copy = trainer.copy
    assert copy is not None
    copy.wait()
    assert not copy.renew(held), "nothing was restored"
    trainer.step()
    put_back()
    copy.equals_state()
    assert copy.renew(held)
    assert not copy.renew(held[1:]), "it has other tensors"
    weight = next(trainer.model.parameters())
    if not is_quick:  # There are sums, which also show what torch does not count.
        weight.data += 1
        assert not copy.renew(held)
        weight.data -= 1
    with torch.no_grad():
        weight += 1
    assert not copy.renew(held)
    put_back()
    copy.equals_state()
    trainer.step()
    assert not copy.renew(held)


def test_another_process_finds_all_of_it_or_what_is_small(
    trainer: Trainer, gate: threading.Event
) -> None:
    before = trainer.values()
    kept(trainer)
    place = trainer.place()
    assert (place.marks.stage, place.marks.step, place.marks.generation) == (SMALL, 41, 3)
    small = place.read()
    assert torch.equal(small["model"]["1.running_mean"], before[4])
    gate.set()
    assert trainer.copy is not None
    trainer.copy.wait()
    trainer.step()
    place = trainer.place()
    assert place.marks.stage == WHOLE
    state = place.read()
    other = Trainer()
    other.model.load_state_dict(state["model"])
    other.optimizer.load_state_dict(state["optimizer"])
    assert are_equal(other.values(), before)
    other.memory.close()


def test_an_older_copy_stays_until_the_newer_is_whole(
    trainer: Trainer, gate: threading.Event
) -> None:
    gate.set()
    kept(trainer, keeps_older=True)
    assert trainer.copy is not None
    trainer.copy.wait()
    first = trainer.place()
    gate.clear()
    kept(trainer, keeps_older=True)
    marks = MARKS.unpack(os.pread(trainer.memory._fd, MARKS.size, 0))
    size = os.fstat(trainer.memory._fd).st_size
    there = copies_in([MemoryPlace("0", os.getpid(), trainer.memory._fd, size, marks)])
    assert [one.marks.stage for one in there] == [WHOLE, SMALL]
    assert there[0].marks == first.marks
    gate.set()


def test_without_room_it_says_so_with_the_numbers(trainer: Trainer) -> None:
    with pytest.raises(NoRoom, match=r"takes .* for 2 ranks, and the host has 1\.0 MB free"):
        kept(trainer, num_ranks=2, look=lambda: HostRoom(available=1e6))


def test_whether_there_is_room_is_known_before_a_copy_is_begun(trainer: Trainer) -> None:
    held = list(trainer.model.parameters())

    def why(**room: float) -> str:
        look = lambda: HostRoom(**room)  # noqa: E731
        return why_no_room(trainer.memory, trainer.__state__(), held, num_ranks=2, look=look)

    assert why() == ""
    assert "the host has 1.0 MB free" in why(available=1e6)
    assert trainer.memory._fd == -1, "it has taken none"
    kept(trainer)
    assert why(available=1e6) == "", "the memory is there already"


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ([("cuda:0", 400), ("cuda:0", 200)], True),  # beside 600, three times as much as 400 fits
        ([("cuda:0", 400), ("cuda:0", 300)], False),
        ([("cuda:0", 400), ("cuda:1", 200)], False),
        ([("cuda:0", 400), ("cpu", 1)], False),
        ([], False),
    ],
)
def test_which_gpus_have_room_for_copies(
    monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[str, int]], fits: bool
) -> None:
    free = {"cuda:0": 1400, "cuda:1": 500}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[str(device)], 10_000))
    tensors = [SimpleNamespace(device=torch.device(one), nbytes=size) for one, size in sizes]
    assert have_gpus_room(tensors) == fits


@pytest.mark.parametrize(
    ("room", "fits", "may_be_pinned"),
    [
        (HostRoom(), True, True),
        (HostRoom(available=5 * GIB), True, True),
        (HostRoom(available=4 * GIB), False, True),
        (HostRoom(in_cgroup=4 * GIB), False, True),
        (HostRoom(lockable=GIB), True, False),
    ],
)
def test_what_has_room(room: HostRoom, fits: bool, may_be_pinned: bool) -> None:
    verdict = verdict_on_room(2 * GIB, 2, room)
    assert (verdict.fits, verdict.may_be_pinned) == (fits, may_be_pinned)
    assert bool(verdict.why) == (not fits)
    assert verdict_on_room(0, 2, HostRoom(available=1)).fits  # The memory is there already.


def cgroup(root: Path, path: str, files: dict[str, object]) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / path / name).write_text(f"{text}\n")


def test_the_nearest_limit_of_the_cgroups_counts(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    two = {"memory.max": 10 * GIB, "memory.current": 9 * GIB,
           "memory.stat": f"anon 5\ninactive_file {GIB}"}  # fmt: skip
    cgroup(root, "a", two)
    cgroup(root, "a/b", {"memory.max": "max", "memory.current": 3, "memory.stat": ""})
    membership.write_text("0::/a/b\n")
    assert room_in_cgroups(membership, root) == 2 * GIB
    membership.write_text("0::/not/seen/here\n")
    assert room_in_cgroups(membership, root) == float("inf")
    one = {"memory.limit_in_bytes": 8 * GIB, "memory.usage_in_bytes": 5 * GIB,
           "memory.stat": f"total_inactive_file {GIB}"}  # fmt: skip
    cgroup(root, "memory/a", one)
    membership.write_text("4:cpu:/x\n5:memory:/a\n")
    assert room_in_cgroups(membership, root) == 4 * GIB
    assert room_in_cgroups(tmp_path / "nothing", root) == float("inf")


def place(number: int, step: int, stage: int = WHOLE) -> CopyPlace:
    there = MemoryPlace("0", 1, 3, 4096, ())
    return CopyPlace(there, 0, HalfMarks(number, stage, step, 1, 0))


@pytest.mark.parametrize(
    ("copies", "settings", "step", "ranks"),
    [
        ({}, {}, None, []),
        ({0: [place(1, 8)], 1: [place(1, 8)]}, {}, 8, [0, 1]),
        ({0: [place(1, 8, SMALL)], 1: [place(1, 8)]}, {}, 8, [1]),
        ({0: [place(1, 8, SMALL)], 1: [place(1, 8)]}, {"needs_all": True}, None, []),
        ({0: [place(1, 8, SMALL)], 1: [place(1, 8, SMALL)]}, {}, None, []),
        ({0: [place(1, 4), place(2, 8)], 1: [place(1, 4)]}, {}, 8, [0]),
        ({0: [place(1, 4), place(2, 8)], 1: [place(1, 4)]}, {"needs_all": True}, 4, [0, 1]),
        ({0: [place(1, 8)]}, {"at_least": 9}, None, []),
        ({2: [place(1, 8)]}, {}, None, []),  # of a rank that is not there any more
    ],
)
def test_the_newest_step_of_which_enough_is_there(
    copies: dict[int, list[CopyPlace]], settings: dict[str, Any], step: int | None, ranks: list[int]
) -> None:
    found = newest_of(copies, 2, **settings)
    assert (found.step if found else None) == step
    assert (sorted(found.whole) if found else []) == ranks
