"""What ``monarch run`` shows in a terminal of 80 columns."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from rich.console import Console
from rich.live import Live

from monarch.cli.run.display import LiveDisplay, Pace, PlainDisplay, QuietDisplay, bar_of, cells_of

STEERS = "ValueError: \x1b]0;title\x07\x1b[2J gone"
VALUES = {
    "accuracy": 0.992, "loss": 0.01871, "samples_per_second": 12847.3, "learning_rate": 2.37e-05,
    "grad_norm": 0.511, "generation": 3, "rank_skew_seconds": 0.0123, "held_out_accuracy": 0.9833,
}  # fmt: skip
COLOUR = re.compile(r"\x1b\[[\d;]*m")
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def shown(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True)
    display = LiveDisplay(console)
    with Live(console=console, auto_refresh=False, get_renderable=display.renderable) as live:
        display.message("[bold] is no markup, and " + "many words follow it here " * 4)
        for step in (1, 123_456):
            display.metrics(step, 123_456, VALUES)
        live.refresh()
    return screen.getvalue()


def test_the_table_fits_the_terminal_and_shows_the_most_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [line.strip("\r") for line in CONTROL.sub("", shown(monkeypatch)).splitlines()]
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.split()[:1] == ["step"])
    assert head.split()[:4] == ["step", "left", "loss", "acc"]
    assert any("123456/123456" in line and "0.0187" in line for line in lines)


def frames(reports: list[dict[str, float]], width: int = 80) -> list[list[str]]:
    """The heads of the table after each report."""
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=24, force_terminal=True)
    display = LiveDisplay(console)
    heads = []
    for step, values in enumerate(reports, 1):
        display.metrics(step, 1000, values)
        with console.capture() as drawn:
            console.print(display.renderable())
        lines = CONTROL.sub("", drawn.get()).splitlines()
        heads.append(next(line for line in lines if line.split()[:1] == ["step"]).split("  "))
    return heads


def test_columns_stay_where_they_are_whatever_the_numbers() -> None:
    long = {"loss": 1.23e-05, "accuracy": 0.123, "samples_per_second": 98765.4, "grad_norm": 123.0}
    short = {"loss": 1.0, "accuracy": 1.0, "samples_per_second": 1.0, "grad_norm": 1.0}
    _, *settled = frames([short, long, short, long, short])
    assert all(head == settled[0] for head in settled)


def test_a_checkpoint_is_a_number_in_the_table_and_no_line() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True)
    display = LiveDisplay(console)
    display.metrics(44, 88, {"loss": 1.0})
    display.saved(44)
    assert screen.getvalue() == ""
    console.print(display.renderable())
    assert re.search(r"step +left +saved +loss", CONTROL.sub("", screen.getvalue()))
    assert re.search(r"44/88 +- +44 +1\b", CONTROL.sub("", screen.getvalue()))


def test_what_goes_on_stands_below_the_table_until_the_next_numbers() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True)
    display = LiveDisplay(console)

    def drawn() -> str:
        with console.capture() as lines:
            console.print(display.renderable())
        return CONTROL.sub("", lines.get())

    display.phase("starting 2 ranks")
    assert re.search(r"starting 2 ranks +0:00:0\d", drawn())
    display.metrics(1, 9, {"loss": 1.0})
    assert "starting" not in drawn()
    display.phase("starting them again")
    assert drawn().index("1/9") < drawn().index("starting them again")


def test_messages_are_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = CONTROL.sub("", shown(monkeypatch)).splitlines()
    first, second = lines[0].split(), lines[1].split()
    assert first[0] == "[bold]"
    words = {"[bold]", "is", "no", "markup,", "and", "many", "follow", "it", "here", "words"}
    assert {*first, *second} <= words


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLOUR.search(shown(monkeypatch))
    plain = COLOUR.findall(shown(monkeypatch, NO_COLOR="1"))
    assert not [code for code in plain if re.search(r"[34]\d", code)]


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for step in range(1, 46):
        display.metrics(step, 45, VALUES)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said] == ["20/45", "40/45", "45/45"]
    assert "\x1b" not in "".join(said)


def test_plain_lines_say_what_was_saved_and_nothing_of_phases(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = PlainDisplay()
    display.phase("starting 2 ranks")
    display.saved(11)
    display.metrics(20, 45, {"loss": 1.0})
    assert capsys.readouterr().out == "step 20/45  loss 1  saved 11\n"


def test_the_loss_comes_first_and_numbers_are_short() -> None:
    cells = cells_of(VALUES)
    assert cells[0] == ("loss", "0.0187")
    assert ("samples/s", "12847") in cells
    assert ("lr", "2.4e-05") in cells
    assert "generation" not in dict(cells)


def test_a_plain_line_goes_out_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to stop says so on another thread, maybe in the middle of it."""
    pieces: list[str] = []

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Out())
    display = PlainDisplay()
    display.message("stopping")
    display.metrics(20, 20, {"loss": 1.0})
    assert pieces == ["stopping\n", "step 20/20  loss 1\n"]


@pytest.mark.parametrize("kind", ["message", "alarm"])
def test_what_user_code_says_does_not_steer_the_terminal(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    live = LiveDisplay(Console(file=screen, width=80, force_terminal=False))
    quiet = [QuietDisplay()] if kind == "alarm" else []
    for display in (live, PlainDisplay(), *quiet):
        getattr(display, kind)(f"{STEERS}\nand\tmore")
        said = capsys.readouterr()
        text = said.out + said.err + screen.getvalue()
        screen.truncate(0)
        assert "\\x1b]0;title\\x07\\x1b[2J gone\nand" in text
        assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 90, 100])
def test_ones_own_metric_and_held_out_values_are_in_the_table_before_what_all_runs_have(
    width: int,
) -> None:
    step = {
        "loss": 0.4646, "mae": 0.1234, "samples_per_second": 12847.3, "learning_rate": 2.37e-05,
        "grad_norm": 0.511, "rank_skew_seconds": 0.0123, "generation": 2.0,
    }  # fmt: skip
    held_out = {"held_out_loss": 0.5012, "held_out_mae": 0.1345}
    heads = frames([step, {**step, **held_out}, step], width)
    names = [name.strip() for name in heads[-1] if name.strip()]
    wanted = ["loss", "mae", "held-out loss", "held-out mae"]
    assert names[2:6] == wanted[: 3 if width == 80 else 4]


def test_the_time_left_is_by_the_pace_of_the_last_steps_and_without_holds() -> None:
    pace, now = Pace(), 0.0
    assert pace.left(1000) == "-"
    for step in range(1, 101):
        now += 10.0 if step < 50 else 0.2
        pace.made(step, now)
    assert pace.left(400) == "1:00"
    pace.made(101, now + 300.0)
    assert pace.left(401) == "1:00", "a hold says nothing of the steps to come"
    for step in range(102, 302):
        now += 1.0
        pace.made(step, now)
    assert pace.left(361) == "1:00"
    assert pace.left(0) == "-"


def test_a_run_that_nobody_knows_the_end_of_has_no_bar() -> None:
    assert bar_of(7, 0) == "7"
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        PlainDisplay(line_every=1).metrics(7, 0, {"loss": 0.5})
    assert screen.getvalue() == "step 7  loss 0.5\n"


def test_a_held_call_takes_the_place_of_the_phase() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    is_held = False
    display = LiveDisplay(console, lambda: is_held)
    display.phase("starting 2 ranks")

    def drawn() -> str:
        with console.capture() as text:
            console.print(display.renderable())
        return text.get()

    assert "starting 2 ranks" in drawn()
    is_held = True
    assert "starting" not in drawn()
    assert "`monarch debug` opens it" in drawn()
    is_held = False
    assert "starting 2 ranks" in drawn()
