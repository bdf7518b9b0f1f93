"""What failures spoil: against a naive interpreter that follows each value."""

from __future__ import annotations

import random

import pytest

from monarch.tensors.core.batch import FREE, RecordSegment
from monarch.tensors.core.log import IssueLog, OpFailure
from monarch.tensors.core.storages import Storage
from monarch.tensors.core.templates import FRESH, INPUT_ITSELF, VIEW_OF_INPUT, Result, Template

_MAKE = Template("make", [Result(FRESH, None)], num_in=0)
_ADD = Template("add", [Result(FRESH, None)], num_in=2)
_VIEW = Template("view", [Result(VIEW_OF_INPUT, None, 0)], num_in=1)
_WRITE = Template("write", [Result(INPUT_ITSELF, None, 0)], num_in=2, mutates=(0,))


class _Programs:
    """Random programs, issued to a log, and followed value by value beside it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = IssueLog()
        self.next_ref = 1
        self.storages: dict[int, Storage] = {}
        self.naive: dict[Storage, object] = {}  # Why each is spoiled.
        self.failures: list[OpFailure] = []
        self.segment = RecordSegment(0, 0)
        self.batch = 0

    def issue(self, template: Template, *used: int, fails: bool = False) -> None:
        base = self.next_ref
        self.next_ref += template.num_out
        written = [self.storages[used[n]] for n in template.mutates]
        position = len(self.segment.ints)
        self.segment.ops.append((position, None, template, written))
        self.segment.ints += [1, base, *used]
        why = next((w for ref in used if (w := self._why(ref)) is not None), None)
        if fails and why is None:
            failure = OpFailure(self.batch, 0, position, self.random.randrange(4), "no")
            self.failures.append(failure)
            why = failure
        if template is _VIEW:
            storage = self.storages[used[0]]
            storage.share(used[0], base)
            self.storages[base] = storage
        elif template.num_out:
            self.storages[base] = Storage()
        if why is not None:
            for storage in [self.storages[base]] if template.num_out else written:
                self.naive.setdefault(storage, why)

    def _why(self, ref: int) -> object:
        return self.naive.get(self.storages[ref])

    def free(self, ref: int) -> None:
        storage = self.storages.pop(ref)
        (storage.refs or set()).discard(ref)
        self.segment.ints += [FREE, 1, ref]

    def flush(self) -> None:
        self.log.sent(self.batch, [self.segment])
        self.segment = RecordSegment(0, 0)
        self.batch += 1

    def settle(self) -> None:
        self.flush()
        self.log.settle(self.batch - 1, self.failures)

    def step(self) -> None:
        refs = list(self.storages)
        kind = self.random.randrange(12)
        if len(refs) < 3 or kind < 2:
            self.issue(_MAKE, fails=kind == 0 and self.random.random() < 0.2)
            return
        a, b = self.random.choice(refs), self.random.choice(refs)
        if kind < 5:
            self.issue(_ADD, a, b, fails=self.random.random() < 0.1)
        elif kind < 7:
            self.issue(_VIEW, a)
        elif kind < 9:
            self.issue(_WRITE, a, b, fails=self.random.random() < 0.1)
        elif kind == 9:
            self.free(a)
        elif kind == 10:
            self.flush()
        else:
            self.settle()


@pytest.mark.parametrize("seeds", [range(0, 100), range(100, 200)], ids=str)
def test_what_is_spoiled_is_what_a_naive_interpreter_says(seeds: range) -> None:
    for seed in seeds:
        programs = _Programs(seed)
        # A view of a view of what failed in place must not be told by the writes that come later.
        for _ in range(60):
            programs.step()
        programs.settle()
        spoiled = {ref for ref in programs.storages if programs._why(ref) is not None}
        assert {ref for ref in programs.log.spoiled if ref in programs.storages} == spoiled, seed
        assert set(programs.log.spoiled) <= set(programs.storages), seed
        assert len(programs.log) == 0


def test_a_fetch_hears_of_what_came_before_it_alone() -> None:
    programs = _Programs(0)
    programs.issue(_MAKE)
    programs.issue(_MAKE)
    programs.flush()
    before = programs.log.watch([1], 0)
    programs.issue(_WRITE, 1, 2, fails=True)
    programs.flush()
    after = programs.log.watch([1], 1)
    programs.free(1)
    programs.settle()
    assert before.spoiler is None
    assert after.spoiler is not None
    assert after.spoiler.failure.text == "no"


def test_the_lowest_rank_that_failed_is_named_and_known_failures_are_not_told_twice() -> None:
    programs = _Programs(0)
    programs.issue(_MAKE, fails=True)
    programs.flush()
    failures = [OpFailure(0, 0, 0, rank, f"of {rank}") for rank in (2, 1)]
    programs.log.settle(0, failures)
    programs.log.settle(0, failures)
    (spoiler,) = programs.log.unasked
    assert spoiler.failure.rank == 1
