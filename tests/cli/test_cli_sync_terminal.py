"""What a push looks like: in terminals wide and narrow, in one that can do little, in none."""

from __future__ import annotations

import io
import os
import re
import threading
from datetime import datetime

import pytest

from monarch.cli.sync.output import Lines
from monarch.cli.sync.progress_bar import ProgressBar, bar_line
from monarch.cli.sync.timeline import Row, timeline_lines
from monarch.cli.terminal.terminal import Terminal
from monarch_sync import HostReport, Problem, PushRefused, Refusal, SyncReport
from monarch_sync.messages import ToldGeneration
from monarch_sync.progress import Progress
from monarch_sync.words import byte_size, clipped, num_cells, printable, some, took, wrapped
from tests.support import wait_for


class Screen(io.TextIOWrapper):
    """A stream that takes itself for a terminal, or does not."""

    def __init__(self, encoding: str = "utf-8", is_terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined,no-any-return]


REPORT = SyncReport(
    generation=42,
    hosts=[HostReport(f"host{i}", num_written=3, bytes_sent=1200) for i in range(16)],
    changed_files=["model.py", "loss.py", "data.py"],
    seconds=0.0381,
    modules_reloaded=["model.py", "loss.py", "data.py", "train.py", "metrics.py"],
    actors_patched={"Trainer": 128, "Evaluator": 4},
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            None,
            "✓ gen 42  3 files → 16 hosts  38 ms  reloaded model.py, loss.py, data.py and 2 more  "
            "patched Trainer×128, Evaluator×4",
        ),
        (
            100,
            "✓ gen 42  3 files → 16 hosts  38 ms  reloaded model.py and 4 more  "
            "patched Trainer×128 and 1 more",
        ),
        (80, "✓ gen 42  3 files → 16 hosts  38 ms  reloaded 5 files  patched 132 actors"),
        (60, "✓ gen 42  3 files → 16 hosts  38 ms  reloaded 5 files  patc…"),
        (20, "✓ gen 42  3 files →…"),
    ],
)
def test_a_line_fits(width: int | None, expected: str) -> None:
    assert REPORT.one_line(width) == expected
    ascii_only = REPORT.one_line(width, ascii_only=True)
    assert ascii_only.isascii()
    assert width is None or len(ascii_only) <= width


def test_hosts_that_got_the_same_share_a_row() -> None:
    REPORT.hosts[3].num_written = 2
    lines = str(REPORT).splitlines()
    REPORT.hosts[3].num_written = 3
    assert lines[1].split() == ["written", "moved", "deleted", "unchanged", "sent"]
    assert lines[2].split() == ["host0", "..", "host15", "(15)", "3", "0", "0", "0", "1.2", "KB"]
    assert lines[3].split()[:2] == ["host3", "2"]


def test_a_report_is_data() -> None:
    data = REPORT.to_dict()
    assert (data["ok"], data["generation"], data["bytes_sent"]) == (True, 42, 16 * 1200)
    assert data["hosts"][0]["num_written"] == 3


def test_hosts_that_were_left_behind_are_told_of() -> None:
    report = SyncReport(generation=2, hosts=[HostReport("a"), HostReport("b", error="disk full")])
    assert report.one_line().startswith("✓ gen 2  0 files → 1 host (1 left behind)")
    screen = Screen()
    Lines(Terminal(screen, {})).pushed(report)
    assert "left behind b: disk full" in screen.text


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("    x = (7\n", 9, "    x = (7\n        ^"),
        ("\tif a:\tb = (\n", 11, "    if a:\tb = (\n         \t   ^"),
        ("名前 = (7", 6, "    名前 = (7\n           ^"),
        ("x", 0, "    x"),
    ],
)
def test_the_caret_stands_under_its_place(text: str, column: int, expected: str) -> None:
    refusal = Refusal("SyntaxError: no", "a.py", 3, column, text)
    assert str(refusal) == f"a.py:3\n{expected}\nSyntaxError: no"


def test_of_many_names_the_rest_is_a_number_that_can_be_read() -> None:
    assert some([f"f{at}.py" for at in range(5000)]) == "f0.py, f1.py, f2.py and 4,997 more"


@pytest.mark.parametrize("width", [30, 40, 59, 60, 80, 100])
@pytest.mark.parametrize("at", ["q", "漢", "z"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_however_narrow_the_caret_stands_under_its_place(
    width: int, at: str, ascii_only: bool
) -> None:
    source = f"    {'words ' * 6}q{' words' * 3} 漢字 {'words ' * 6}z"
    refusal = Refusal("SyntaxError: no", "a.py", 3, source.index(at) + 1, source)
    report = SyncReport(errors=[str(refusal)])
    _, _, code, caret, message = report.table(width, ascii_only=ascii_only).splitlines()
    assert num_cells(code) <= width
    assert message == "  SyntaxError: no"
    before = code.partition(at)[0]
    assert at in code
    assert caret == " " * num_cells(before) + "^"
    assert code.startswith("      ")
    assert source.strip() in report.table()


def test_what_can_be_read_again_is_told() -> None:
    screen = Screen(is_terminal=False)
    lines = Lines(Terminal(screen, {}))
    unread = [Problem(f"{name}.py", "no", is_unreadable=True, is_kept=True) for name in "abcd"]
    lines.pushed(SyncReport(generation=1, problems=unread))
    lines.pushed(SyncReport(generation=1, problems=unread[:3]))
    lines.pushed(SyncReport(generation=1, problems=[]))
    lines.pushed(SyncReport(generation=1, problems=[Problem("pipe", "is a pipe")]))
    lines.pushed(SyncReport(generation=1))
    told = [line for line in screen.text.splitlines() if "again" in line]
    assert told == [
        "  hosts have d.py as it is here again",
        "  hosts have a.py, b.py, c.py as it is here again",
    ]


def test_a_long_reason_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    refused = SyncReport(errors=["a host of a mesh: it has said that " + "no, " * 10])
    Lines(Terminal(screen, {"TERM": "dumb"})).pushed(refused)
    assert max(map(num_cells, screen.text.splitlines())) <= 40
    assert screen.text.count("no,") == 10


# Where it is shown


def test_colour_is_for_terminals_that_want_it() -> None:
    refused = SyncReport(generation=41, errors=["a.py:1\nSyntaxError"])
    coloured, plain, dumb, none = Screen(), Screen(), Screen(), Screen(is_terminal=False)
    Lines(Terminal(coloured, {"TERM": "xterm"})).pushed(refused)
    Lines(Terminal(plain, {"TERM": "xterm", "NO_COLOR": "1"})).pushed(refused)
    Lines(Terminal(dumb, {"TERM": "dumb"})).pushed(refused)
    Lines(Terminal(none, {"TERM": "xterm"})).pushed(refused)
    assert "\x1b[31m" in coloured.text
    for screen in (plain, dumb, none):
        assert screen.text == (
            "✗ refused  0 ms  no rank changed; still on gen 41\n  a.py:1\n  SyntaxError\n"
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("broken between words", "broken\nbetween\nwords"),
        ("  an indent stays there", "  an\n  indent\n  stays\n  there"),
        ("one/that/is/long stays", "one/that/is/long\nstays"),
        ("first\n  and second line\n\n   ^", "first\n  and\n  second\n  line\n\n   ^"),
        ("漢字 漢字 a", "漢字 漢字\na"),
        ("ends in \nblanks  ", "ends in \nblanks  "),
    ],
)
def test_prose_is_broken_between_words(text: str, expected: str) -> None:
    assert wrapped(text, 9) == expected


def test_a_poor_encoding_is_no_error() -> None:
    screen = Screen("latin-1", is_terminal=False)
    terminal = Terminal(screen, {})
    terminal.line("日本.py → \udcff")
    Lines(terminal).pushed(REPORT)
    Lines(terminal).failed("gone")
    assert "\\u65e5\\u672c.py \\u2192 \\xff\n" in screen.text
    assert "ok gen 42  3 files -> 16 hosts" in screen.text
    assert "Trainerx128" in screen.text
    assert "x gone\n" in screen.text


def test_names_cannot_steer_the_terminal() -> None:
    report = SyncReport(
        generation=1,
        hosts=[HostReport("h", kept=["a\x1b[2Jb.host-1"])],
        problems=[Problem("line\nbreak\x07", "is no file")],
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", str(report))
    assert "left out line\\nbreak\\x07: is no file" in str(report)


def test_what_was_left_out_is_told_once() -> None:
    screen = Screen()
    lines = Lines(Terminal(screen, {"TERM": "dumb"}))
    report = SyncReport(generation=1, problems=[Problem("pipe", "is no file")])
    lines.pushed(report)
    lines.pushed(report)
    assert screen.text.count("left out pipe") == 1


def test_a_note_is_told_once_as_long_as_it_holds() -> None:
    screen = Screen()
    lines = Lines(Terminal(screen, {"TERM": "dumb"}))
    for notes in (["uv.lock changed"], ["uv.lock changed"], [], ["uv.lock changed"]):
        lines.pushed(SyncReport(generation=1, notes=notes))
    assert screen.text.count("uv.lock changed") == 2


def test_a_note_of_several_lines_is_told_whole() -> None:
    screen = Screen()
    Lines(Terminal(screen, {"TERM": "dumb"})).pushed(SyncReport(notes=["one\ntwo"]))
    assert screen.text.splitlines()[1:] == ["  one", "  two"]


# Progress


SENDING = Progress("stage", bytes_to_send=450_000_000)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, "sending  [████████░░░░░░░░░░░░░░░░░░░░░░]  120 MB of 450 MB  33 s left"),
        (60, "sending  [█████░░░░░░░░░░░░░░░]  120 MB of 450 MB  33 s left"),
        (40, "sending  120 MB of 450 MB  33 s left"),
        (20, "sending  120 MB of…"),
    ],
)
def test_a_bar_fits(width: int, expected: str) -> None:
    line = bar_line(SENDING, 120_000_000, 12.0, 10_000_000.0, width)
    assert line == expected
    assert num_cells(line) <= width


def test_a_bar_before_and_after_the_sending() -> None:
    reading = Progress("scan", num_files=1200, bytes_read=5_000_000)
    assert bar_line(reading, 0, 1.5, 0.0, 80) == "reading  1,200 files, 5.0 MB  1.5 s"
    one = Progress("scan", num_files=1, bytes_read=24)
    assert bar_line(one, 0, 1.5, 0.0, 80) == "reading  1 file, 24 B  1.5 s"
    assert bar_line(Progress("stage"), 0, 0.7, 0.0, 80) == "asking hosts what they lack  700 ms"
    assert bar_line(Progress("prepare"), 0, 2.0, 0.0, 80) == "trying the new code  2.0 s"
    assert bar_line(Progress("packages"), 0, 9.0, 0.0, 80).startswith("having pip find the pack")
    full = bar_line(SENDING, 999_000_000, 1.0, 1.0, 60, ascii_only=True)
    assert full == f"sending  [{30 * '#'}]  450 MB of 450 MB"


def test_a_long_push_has_a_bar_that_goes_away() -> None:
    screen = Screen()
    terminal = Terminal(screen, {"TERM": "xterm"})
    asked = threading.Event()

    def source() -> tuple[Progress, int]:
        asked.set()
        return SENDING, 120_000_000

    with Lines(terminal).busy(source, at_once=True):
        assert asked.wait(20)
        wait_for(lambda: "120 MB of 450 MB" in screen.text)
        terminal.line("a line comes between")
        wait_for(lambda: screen.text.split("\n")[-1])
    above, below = screen.text.split("\n")
    assert above.endswith("\r\x1b[Ka line comes between"), "the bar is taken away first"
    assert below.endswith("\r\x1b[K"), "and at the end"


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_no_bar_where_nobody_sees_it(environ: dict[str, str]) -> None:
    screen = Screen(is_terminal=bool(environ))
    terminal = Terminal(screen, environ)
    with Lines(terminal).busy(lambda: pytest.fail("asked")):
        terminal.change("x")
    assert screen.text == ""


def test_a_quick_push_has_no_bar() -> None:
    screen = Screen()
    terminal = Terminal(screen, {"TERM": "xterm"})
    progress_bar = ProgressBar(terminal, lambda: (SENDING, 0), at_once=False)
    progress_bar.close()
    assert screen.text == ""


# Words


def test_words() -> None:
    assert [byte_size(n) for n in (0, 999, 1000, 9_950, 999_499, 999_500, 34e6, 2.5e9, 7e12)] == [
        "0 B", "999 B", "1.0 KB", "9.9 KB", "999 KB", "1.0 MB", "34 MB", "2.5 GB", "7000 GB",
    ]  # fmt: skip
    assert [took(s) for s in (0, 0.0007, 0.038, 2.44, 200.4)] == [
        "0 ms", "0.7 ms", "38 ms", "2.4 s", "3 min 20 s",
    ]  # fmt: skip
    assert clipped("日本語テスト", 7) == "日本語…"
    assert printable("a\tb\udc80é") == "a\\tb\\x80é"


def test_width_is_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "47")
    assert Terminal(Screen(), {}).width == 47
    assert Terminal(Screen(is_terminal=False), {}).width is None
    assert os.environ["COLUMNS"] == "47"


def test_what_a_generation_is_stays_in_sight_where_names_do_not() -> None:
    names = [f"a/folder/with/a/name/file{number}.py".encode() for number in range(20)]
    told = ToldGeneration(3, 0.0, "ann@box", bytes(16), 61, 61, names, True)
    rows = [Row(told, ["one"], True, True, 1)]
    now = datetime(2026, 1, 1)
    [_, whole] = timeline_lines(rows, now, 2, None)
    assert whole.endswith("file2.py and 58 more (same as gen 1) (on 1 of 2 hosts)")
    for width in (60, 90, 120):
        [_, line] = timeline_lines(rows, now, 2, width)
        assert num_cells(line) <= width
        assert ("61 files" in line, "(same as gen 1)" in line) == (True, width > 60)


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b2J\u202e"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_in_a_file_or_a_host_says_steers_no_terminal(is_terminal: bool) -> None:
    refusal = Refusal(f"ValueError: {HOSTILE} gone", "moda.py", 1, 7, f"X =\t(2  # {HOSTILE}")
    refused = PushRefused("disk", f"{HOSTILE}\n✓ gen 2  1 file → 8 hosts")
    report = SyncReport(
        generation=1,
        errors=[str(refusal), HOSTILE],
        refusals=[refusal],
        notes=[HOSTILE],
        problems=[Problem("a", HOSTILE)],
    )
    screen = Screen(is_terminal=is_terminal)
    lines = Lines(Terminal(screen, {"TERM": "xterm", "NO_COLOR": "1"}))
    lines.pushed(report)
    lines.failed(f"it went wrong: {HOSTILE}")
    lines.failed(str(refused))
    lines.alarm("hung", HOSTILE)
    for text in (screen.text, str(report), str(refusal), str(refused)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), ascii(text)
    assert r"\x1b[2J" in screen.text
    assert "(2  #" in screen.text
    assert len(str(refused).splitlines()) == 1


def test_what_stays_exact_is_what_goes_elsewhere() -> None:
    screen = Screen(is_terminal=False)
    Terminal(screen).line(f"+{HOSTILE}", is_exact=True)
    assert screen.text == f"+{HOSTILE}\n"
