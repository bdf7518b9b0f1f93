"""What README.md shows of two terminals is what the code prints there."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from monarch.cli.main import cli
from monarch.cli.run import display
from monarch.cli.run.display import LiveDisplay
from monarch.cli.sync.key_commands import KEYS_HINT
from monarch.cli.sync.output import Lines
from monarch.cli.terminal.terminal import Terminal
from monarch_sync import HostReport, Refusal, SyncReport

README = (Path(__file__).parents[2] / "README.md").read_text()


def shown_by(command: str) -> list[str]:
    """The lines below a command, as they stand there."""
    after = README.split(f"    $ {command}\n", 1)[1]
    block = re.match(r"(?:    .*\n|\n(?=    ))*", after)
    assert block is not None
    return [line[4:].rstrip() for line in block[0].splitlines()]


def printed(report: SyncReport) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    Lines(Terminal(out, {})).pushed(report)
    out.seek(0)
    return out.read().splitlines()


def test_the_terminal_of_the_watch() -> None:
    hosts = [HostReport("trainers0"), HostReport("trainers1")]
    line = "    return functional.cross_entropy(logits, labels, label_smoothing=0.1"
    column = line.index("(") + 1
    refusal = Refusal("SyntaxError: '(' was never closed", "task.py", 8, column, line)
    error = f"{refusal}\n(said by ddp 0, ddp 1)"
    all_files = ["ddp.toml", "monarch.toml", "task.py"]
    one = ["task.py"]
    assert shown_by("monarch sync --watch") == [
        *printed(SyncReport(1, hosts=hosts, changed_files=all_files, seconds=0.020)),
        "watching ~/project; Ctrl-C ends it",
        KEYS_HINT,
        *printed(SyncReport(
            2, hosts=hosts, changed_files=one, seconds=0.131, modules_reloaded=one
        )),
        *printed(SyncReport(2, errors=[error], seconds=0.040)),
        *printed(SyncReport(
            3, hosts=hosts, changed_files=one, seconds=0.078, modules_reloaded=one
        )),
    ]  # fmt: skip


def test_the_terminal_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_by("monarch run ddp --config ddp.toml")
    console = Console(file=io.StringIO(), width=80, color_system=None)
    live = LiveDisplay(console)
    monkeypatch.setattr(display.Pace, "left", lambda *_: "1:41")
    live.saved(352)
    values = {"loss": 6.4e-4, "accuracy": 1.0, "samples_per_second": 2662.0}
    live.metrics(355, 2200, values | {"accuracy": 0.969})  # A column never shrinks.
    live.renderable()
    live.metrics(356, 2200, values)
    with console.capture() as drawn:
        console.print(live.renderable())
    table = [line.rstrip() for line in drawn.get().splitlines() if line.strip()]
    assert shown[-3:] == table
    first = SyncReport(1, hosts=[HostReport("a"), HostReport("b")], seconds=0.010)
    assert [shown[0]] == printed(first)


def test_every_command_that_is_shown_is_one() -> None:
    told = re.findall(r"`?monarch ((?:[a-z]+ ?)+)", README)
    known = set(cli.commands)
    commands = {words.split()[0] for words in told if words.split()[0] in known}
    assert commands >= {"apply", "sync", "run", "runs", "recipe", "sweep", "status", "kill", "dev"}
    for line in re.findall(r"^    (?:\$ )?monarch (\w+)", README, re.M):
        assert line in known, line
