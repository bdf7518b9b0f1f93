"""A peer keeps the order of what is sent to it, whatever state it is in: see its table."""

from __future__ import annotations

import pytest

from monarch.errors import MeshFailure
from monarch.net.transport import Frames
from monarch.runtime.links.peer import Peer, PeerState
from monarch.wire.address import ProcAddress

ADDRESS = ProcAddress("p")
FAILURE = MeshFailure("p", (), "it was killed")


class Line:
    """A connection that notes what leaves by it."""

    def __init__(self) -> None:
        self.sent: list[Frames] = []
        self.is_closed = False

    def send(self, frames: Frames) -> None:
        assert not self.is_closed
        self.sent.append(frames)

    def close(self, linger: float = 0.0) -> None:
        self.is_closed = True


@pytest.fixture
def line() -> Line:
    return Line()


def peer_in(state: PeerState, line: Line) -> Peer:
    peer = Peer(ADDRESS)
    if state in (PeerState.UP, PeerState.HELD):
        peer.up(ADDRESS, lambda: line, [b"hello"])
    if state is PeerState.HELD:
        peer.hold()
    if state is PeerState.DOWN:
        peer.down(FAILURE)
    assert peer.state is state
    return peer


COMING, UP, HELD, DOWN = PeerState.COMING, PeerState.UP, PeerState.HELD, PeerState.DOWN


@pytest.mark.parametrize(
    ("event", "after"),
    [
        ("up", {COMING: UP, UP: UP, HELD: HELD, DOWN: DOWN}),
        ("hold", {COMING: COMING, UP: HELD, HELD: HELD, DOWN: DOWN}),
        ("release", {COMING: COMING, UP: UP, HELD: UP, DOWN: DOWN}),
        ("again", {COMING: COMING, UP: COMING, HELD: COMING, DOWN: DOWN}),
        ("down", {COMING: DOWN, UP: DOWN, HELD: DOWN, DOWN: DOWN}),
    ],
)
@pytest.mark.parametrize("state", list(PeerState))
def test_each_event_leads_where_the_table_says(
    event: str, after: dict[PeerState, PeerState], state: PeerState, line: Line
) -> None:
    peer = peer_in(state, line)
    if event == "up":
        peer.up(ADDRESS, Line, [b"hello again"])
    elif event == "down":
        assert peer.down(FAILURE) == (state is not DOWN)
    else:
        getattr(peer, event)()
    assert peer.state is after[state]
    assert peer.is_up == (after[state] is UP)


def test_no_transition_leaves_down_and_none_is_made_that_the_table_lacks(line: Line) -> None:
    peer = peer_in(DOWN, line)
    with pytest.raises(AssertionError, match="a peer that is down was up"):
        peer._enter(UP, line)
    with pytest.raises(AssertionError, match="a peer that is coming up was gives way"):
        peer_in(COMING, line)._enter(HELD)


def test_frames_that_were_kept_leave_first_when_the_process_is_up(line: Line) -> None:
    peer = Peer(ADDRESS)
    peer.send([b"1"])
    peer.send_when_up(lambda: [b"2"])
    peer.up(ADDRESS, lambda: line, [b"hello"])
    peer.send([b"3"])
    assert line.sent == [[b"hello"], [b"1"], [b"2"], [b"3"]]


def test_frames_for_one_that_gives_way_are_for_the_new_process(line: Line) -> None:
    peer = peer_in(HELD, line)
    peer.send([b"for the new one"])
    assert peer.send_past([b"for the old one"])
    peer.again()
    assert line.is_closed
    new = Line()
    peer.up(ADDRESS, lambda: new, [b"hello"])
    assert line.sent == [[b"hello"], [b"for the old one"]]
    assert new.sent == [[b"hello"], [b"for the new one"]]


def test_one_that_stays_after_all_gets_what_was_kept(line: Line) -> None:
    peer = peer_in(HELD, line)
    peer.send([b"kept"])
    peer.release()
    assert line.sent == [[b"hello"], [b"kept"]]
    assert not peer.send_past([b"to nobody"])


def test_what_is_sent_to_one_that_is_down_is_dropped(line: Line) -> None:
    peer = peer_in(UP, line)
    assert peer.down(FAILURE)
    peer.send([b"lost"])
    assert line.is_closed
    assert line.sent == [[b"hello"]]
    assert peer.failure is FAILURE
