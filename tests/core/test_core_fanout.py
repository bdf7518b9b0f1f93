from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.fanout import Branch, Members, branches, depth, heads_above
from monarch.mesh import Slice


def reach(start: int, stop: int, degree: int, dead: set[int]) -> list[tuple[int, int]]:
    """(host, hops) of all that get a message, in the way that agents pass it on."""
    got = []
    for branch in branches(start, stop, degree, sorted(dead)):
        got.append((branch.start, 1))
        below = reach(branch.start + 1, branch.stop, degree, dead)
        got.extend((host, hops + 1) for host, hops in below)
    return got


hosts = st.integers(0, 300)
degrees = st.integers(2, 40)


@settings(deadline=None)
@given(hosts, degrees, st.sets(st.integers(0, 300), max_size=20))
def test_every_living_host_gets_it_once(num_hosts: int, degree: int, dead: set[int]) -> None:
    got = [host for host, _ in reach(0, num_hosts, degree, dead)]
    assert sorted(got) == [host for host in range(num_hosts) if host not in dead]


@settings(deadline=None)
@given(st.integers(1, 1200), degrees)
def test_nobody_sends_more_than_the_degree_and_it_is_not_deep(num_hosts: int, degree: int) -> None:
    hops = reach(0, num_hosts, degree, set())
    assert len(branches(0, num_hosts, degree)) == min(num_hosts, degree)
    assert max(hop for _, hop in hops) == depth(num_hosts, degree)
    assert depth(num_hosts, degree) <= math.ceil(math.log(num_hosts + 1, degree)) + 1


@settings(deadline=None)
@given(st.integers(1, 200), degrees, st.data())
def test_a_death_changes_only_the_routes_below_it(
    num_hosts: int, degree: int, data: st.DataObject
) -> None:
    dead = data.draw(st.integers(0, num_hosts - 1))
    host = data.draw(st.integers(0, num_hosts - 1).filter(lambda host: host != dead))
    before = heads_above(host, num_hosts, degree)
    after = heads_above(host, num_hosts, degree, [dead])
    if dead in before:
        assert dead not in after
        at = before.index(dead)
        assert after[:at] == before[:at]
    else:
        assert after == before


def test_small_trees() -> None:
    assert branches(0, 0, 4) == []
    assert branches(0, 3, 4) == [Branch(0, 1), Branch(1, 2), Branch(2, 3)]
    assert branches(0, 10, 3) == [Branch(0, 4), Branch(4, 7), Branch(7, 10)]
    assert branches(0, 10, 3, [0]) == [
        Branch(1, 2), Branch(2, 3), Branch(3, 4), Branch(4, 7), Branch(7, 10)
    ]  # fmt: skip
    assert heads_above(3, 10, 2) == [0]
    assert heads_above(4, 10, 2) == [0, 3]
    assert depth(1000, 32) == 2
    assert depth(1, 32) == 1


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """A mesh of up to three dimensions, cut along each."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    strides = Slice.new_row_major(sizes).strides
    offset, cut, steps = 0, [], []
    for size, stride in zip(sizes, strides, strict=True):
        start = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, 3))
        offset += start * stride
        cut.append(draw(st.integers(1, (size - 1 - start) // step + 1)))
        steps.append(stride * step)
    return Slice(offset=offset, sizes=cut, strides=steps)


@settings(deadline=None)
@given(slices(), st.integers(0, 100), st.integers(0, 100))
def test_members_know_who_is_in_a_range(part: Slice, start: int, stop: int) -> None:
    places = list(part)
    members = Members.from_wire(Members.of(places, part.sizes).to_wire())
    assert len(members.parts) == 1, "a slice stays one part, whatever its size"
    assert list(members) == places
    inside = sorted((place, rank) for rank, place in enumerate(places) if start <= place < stop)
    assert members.count(start, stop) == len(inside)
    assert members.within(start, stop) == inside


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), unique=True, min_size=1), st.integers(0, 60))
def test_members_may_be_any_places_in_any_order(places: list[int], start: int) -> None:
    members = Members.from_wire(Members.of(places, [len(places)]).to_wire())
    assert list(members) == places
    inside = sorted((place, rank) for rank, place in enumerate(places) if start <= place < 40)
    assert members.within(start, 40) == inside
    assert members.count(start, 40) == len(inside)
