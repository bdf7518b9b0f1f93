"""Bytes become lines: none is lost, none torn, whatever the reads look like."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from monarch.core.log_lines import LineBuffer, clean

PIECES = st.lists(
    st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\xe2\x82", b"\xac", b" 5%\r", b""])
)


def read(buffer: LineBuffer, *pieces: bytes, now: float = 0.0) -> tuple[bytes, list[str]]:
    raw, shown = b"", b""
    for piece in pieces:
        written = buffer.feed(piece, now)
        raw += written.raw
        shown += written.shown
    return raw, shown.decode("utf-8", "replace").split("\n")[:-1]


@given(PIECES)
def test_the_file_gets_every_byte_in_order(pieces: list[bytes]) -> None:
    buffer = LineBuffer()
    raw = b"".join(buffer.feed(piece, index / 3).raw for index, piece in enumerate(pieces))
    assert raw + buffer.end().raw == b"".join(pieces)


@given(PIECES)
def test_what_is_shown_is_whole_lines(pieces: list[bytes]) -> None:
    buffer = LineBuffer()
    for index, piece in enumerate(pieces):
        shown = buffer.feed(piece, index / 3).shown
        assert shown == b"" or shown.endswith(b"\n")
        assert b"\r" not in shown


@given(st.lists(st.text(alphabet="ab \u20ac", max_size=5)), st.integers(1, 7))
def test_lines_without_tricks_are_shown_as_they_are(lines: list[str], size: int) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert read(LineBuffer(), *pieces)[1] == lines


def test_an_unfinished_line_waits_for_its_end() -> None:
    buffer = LineBuffer()
    assert read(buffer, b"one ", b"line")[1] == []
    assert read(buffer, b"\nnext")[1] == ["one line"]
    assert buffer.end().shown == b"next\n"
    assert buffer.end().shown == b""


def test_carriage_returns_at_line_ends_are_no_progress() -> None:
    assert read(LineBuffer(), b"one\r\ntwo\r\n")[1] == ["one", "two"]


def test_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"\r 1%\r", 10.0).shown == b" 1%\n"
    assert buffer.feed(b" 2%\r", 10.5).shown == b""
    assert buffer.feed(b" 3%\r", 10.9).shown == b""
    assert buffer.feed(b" 4%\r", 11.1).shown == b" 4%\n"
    assert buffer.feed(b"100%\nnext\n", 11.2).shown == b"100%\nnext\n"


def test_a_progress_bar_that_ends_with_what_was_shown_is_not_shown_again() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"100%\r", 0.0).shown == b"100%\n"
    assert buffer.feed(b"\n", 0.1).shown == b""
    assert buffer.feed(b"\n", 0.2).shown == b"\n"


def test_the_last_state_of_a_progress_bar_that_never_ended_is_shown() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"\r 1%\r 2%\r", 0.0).shown == b" 2%\n"
    assert buffer.feed(b" 3%\r", 0.1).shown == b""
    assert buffer.end().shown == b" 3%\n"


def test_a_line_that_does_not_end_is_cut_between_characters() -> None:
    buffer = LineBuffer()
    text = "\u20ac" * 60_000
    raw, lines = read(buffer, text.encode()[:-1], text.encode()[-1:])
    last = buffer.end()
    assert raw + last.raw == text.encode()
    assert "".join(lines) + last.shown.decode()[:-1] == text
    assert len(lines) >= 1


def test_only_colours_reach_the_terminal() -> None:
    assert clean("plain\ttext \u20ac\n") == "plain\ttext \u20ac\n"
    assert clean("\x1b[31mred\x1b[0m\n") == "\x1b[31mred\x1b[0m\n"
    assert clean("\x1b[31mred\nnext\n") == "\x1b[31mred\x1b[0m\nnext\n"
    assert clean("up\x1b[2A\x1b[Kdown\n") == "updown\n"
    assert clean("\x1b]0;title\x07text\x1b]8;;url\x1b\\link\n") == "textlink\n"
    assert clean("bell\x07\x00\n") == "bell\n"


@given(st.text(alphabet="\x1b[]0;mA\x07\n ab", max_size=30))
def test_nothing_that_is_cleaned_moves_a_cursor(text: str) -> None:
    left = re.sub(r"\x1b\[[0-9;:]*m", "", clean(text))
    assert "\x1b" not in left
    assert "\x07" not in left
    assert left.count("\n") == text.count("\n")


def test_a_title_without_an_end_ends_with_its_line() -> None:
    assert clean("a\x1b]0;title\nnext\n") == "a\nnext\n"


def test_control_characters_of_eight_bits_are_left_out_too() -> None:
    assert clean("a\x9b2Jb\n") == "a2Jb\n"
