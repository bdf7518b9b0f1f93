from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from monarch.core.reassembly import Assembly, SenderQueues, chunks_of

PIECES = st.lists(st.binary(max_size=40), max_size=6)


@given(pieces=PIECES, chunk_bytes=st.integers(1, 50))
def test_pieces_cut_into_chunks_are_put_together_again(
    pieces: list[bytes], chunk_bytes: int
) -> None:
    chunks = list(chunks_of([memoryview(piece) for piece in pieces], chunk_bytes))
    sizes = [sum(map(len, chunk)) for chunk in chunks]
    assert all(size == chunk_bytes for size in sizes[:-1])
    assert all(0 < size <= chunk_bytes for size in sizes)
    places = [bytearray(len(piece)) for piece in pieces]
    assembly = Assembly([memoryview(place) for place in places])
    for chunk in chunks:
        assert not assembly.is_complete
        assert assembly.feed(chunk)
    assert assembly.is_complete
    assert places == pieces


@given(pieces=PIECES, more=st.binary(min_size=1, max_size=5))
def test_more_than_was_announced_does_not_fit(pieces: list[bytes], more: bytes) -> None:
    places = [bytearray(len(piece)) for piece in pieces]
    assembly = Assembly([memoryview(place) for place in places])
    for chunk in chunks_of([memoryview(piece) for piece in pieces], 7):
        assembly.feed(chunk)
    assert not assembly.feed([memoryview(more)])
    assert not Assembly([memoryview(bytearray(3))]).feed([memoryview(b"four")])
    assert not Assembly([memoryview(bytearray(3))]).feed([memoryview(b"")])


SENDERS = ("a", "b", "c")


@given(data=st.data())
def test_each_senders_messages_are_let_go_in_the_order_sent(data: st.DataObject) -> None:
    """Against the simplest model: what was let go is a prefix of what began to arrive."""
    order: SenderQueues[tuple[str, int]] = SenderQueues()
    begun: dict[str, list[tuple[str, int]]] = defaultdict(list)
    whole: set[tuple[str, int]] = set()
    let_go: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for number in range(data.draw(st.integers(0, 30))):
        open_ones = [m for sender in SENDERS for m in begun[sender] if m not in whole]
        kind = data.draw(st.sampled_from(["small", "large", *["complete"] * bool(open_ones)]))
        if kind == "complete":
            sender, key = message = data.draw(st.sampled_from(open_ones))
            whole.add(message)
            let_go[sender] += order.complete(sender, key, message)
        else:
            sender = data.draw(st.sampled_from(SENDERS))
            message = sender, number
            begun[sender].append(message)
            if kind == "large":
                order.begin(sender, number)
            else:
                whole.add(message)
                if order.holds(sender):
                    order.add(sender, message)
                else:
                    let_go[sender].append(message)
        for name in SENDERS:
            expected = []
            for one in begun[name]:
                if one not in whole:
                    break
                expected.append(one)
            assert let_go[name] == expected
            assert order.holds(name) == (len(expected) < len(begun[name]))
    assert len(order) == sum(order.holds(name) for name in SENDERS)


def test_nothing_comes_after_what_was_lost() -> None:
    order: SenderQueues[str] = SenderQueues()
    order.begin("a", 1)
    order.add("a", "behind it")
    order.begin("b", 1)
    order.drop("a")
    assert not order.holds("a")
    assert order.complete("a", 1, "too late") == []
    assert order.complete("b", 1, "of another") == ["of another"]


def test_what_was_lost_on_its_way_through_others_holds_nothing_back() -> None:
    order: SenderQueues[str] = SenderQueues()
    order.begin("a", 1)
    order.add("a", "behind it")
    order.begin("a", 2)
    order.add("a", "behind both")
    assert order.skip("a", 1) == ["behind it"]
    assert order.holds("a")
    assert order.skip("a", 2) == ["behind both"]
    assert not order.holds("a")
    assert order.skip("a", 2) == []
