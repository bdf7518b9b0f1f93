from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monarch.core.call_table import CallTable, Collector
from monarch.errors import MeshFailure

UIDS = ["p0", "p1", "p2"]


def failure(uid: str) -> MeshFailure:
    return MeshFailure(uid, (), "gone", "proc")


class Recorder:
    """A sink that wants ``wanted`` answers, and that the death of ``uid`` ends."""

    def __init__(self, wanted: int, uid: str = "") -> None:
        self.wanted = wanted
        self.uid = uid
        self.taken: list[tuple[int, Any]] = []
        self.downs: list[str] = []

    def receive(self, rank: int, answer: Any) -> bool:
        self.taken.append((rank, answer))
        return len(self.taken) >= self.wanted

    def down(self, uid: str, failure: MeshFailure) -> bool:
        self.downs.append(uid)
        return uid == self.uid


targets = st.lists(st.sampled_from(UIDS), min_size=1, max_size=5)
answers = st.tuples(st.integers(0, 5), st.integers())
events = st.lists(answers | st.sampled_from(UIDS), max_size=20)


@given(targets=targets, events=events)
def test_a_collector_takes_one_answer_a_rank_until_a_missing_one_dies(
    targets: list[str], events: list[tuple[int, int] | str]
) -> None:
    collector: Collector[int] = Collector(targets)
    expected: dict[int, int] = {}
    died = None
    for event in events:
        was_complete = len(expected) == len(targets) or died is not None
        if isinstance(event, tuple):
            rank, answer = event
            ended = collector.receive(rank, answer)
            if not was_complete and rank < len(targets):
                expected.setdefault(rank, answer)
        else:
            ended = collector.down(event, failure(event))
            waits = any(uid == event and r not in expected for r, uid in enumerate(targets))
            if not was_complete and waits:
                died = event
        is_complete = len(expected) == len(targets) or died is not None
        assert collector.is_complete == is_complete
        assert ended == (is_complete and not was_complete), "true exactly once"
    assert collector.answers == [expected.get(rank) for rank in range(len(targets))]
    assert (collector.failure and collector.failure.mesh_name) == died


def test_a_collector_of_nobody_is_complete() -> None:
    assert Collector([]).is_complete


@given(
    wants=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    sent=st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=30),
)
def test_an_answer_reaches_its_own_sink_and_no_forgotten_one(
    wants: list[int], sent: list[tuple[int, int]]
) -> None:
    table = CallTable()
    sinks = [Recorder(wanted) for wanted in wants]
    ports = {table.open(sink): sink for sink in sinks}
    assert len(ports) == len(sinks)
    expected: dict[int, list[tuple[int, int]]] = {port: [] for port in ports}
    for port, answer in sent:
        table.receive(port, 0, answer)
        if port in ports and len(expected[port]) < ports[port].wanted:
            expected[port].append((0, answer))
    assert {port: sink.taken for port, sink in ports.items()} == expected
    assert len(table) == sum(len(expected[p]) < sink.wanted for p, sink in ports.items())


def test_a_death_goes_to_all_who_wait_and_closes_only_what_it_ends() -> None:
    table = CallTable()
    ends, goes_on, done = Recorder(1, "p0"), Recorder(1, "p1"), Recorder(1, "p0")
    first, second, third = table.open(ends), table.open(goes_on), table.open(done)
    table.receive(third, 0, "answer")
    table.down("p0", failure("p0"))
    assert (ends.downs, goes_on.downs, done.downs) == (["p0"], ["p0"], [])
    table.receive(first, 0, "late")
    table.receive(second, 0, "in time")
    assert (ends.taken, goes_on.taken) == ([], [(0, "in time")])
    assert len(table) == 0


def test_a_closed_port_takes_nothing() -> None:
    table = CallTable()
    sink = Recorder(1)
    port = table.open(sink)
    table.close(port)
    table.close(port)
    table.receive(port, 0, "answer")
    assert sink.taken == []


def test_a_sink_may_open_a_port_while_a_death_is_told() -> None:
    table = CallTable()

    class Retries(Recorder):
        def down(self, uid: str, failure: MeshFailure) -> bool:
            table.open(Recorder(1))
            return True

    for _ in range(3):
        table.open(Retries(1))
    table.down("p0", failure("p0"))
    assert len(table) == 3
