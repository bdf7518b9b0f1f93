"""The examples about actors say in both spellings what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/actors"

EXPECTED = {
    "counter": ["all: [12, 12, 12, 12]", "one: 17", "sum: 53"],
    "ping_pong": [
        "pong 0 says hello to ping 0",
        "pong 1 says hello to ping 1",
        "hits on our side: [5, 5]",
    ],
    "slices": [
        "one          {}                     0 (6)",
        "a host       {gpus: 4}              0 (4), 1 (5), 2 (6), 3 (7)",
        "every other  {hosts: 2, gpus: 2}    0 (0), 1 (2), 2 (4), 3 (6)",
        "in a row     {rank: 8}              " + ", ".join(f"{rank} ({rank})" for rank in range(8)),
        "in pairs     {hosts: 2, pair: 2}    0 (0), 1 (2), 2 (4), 3 (6)",
        "renamed      {tp: 2}                0 (1), 1 (2)",
    ],
    "toy_actors": [f"I am {rank}, and was told: hey there, all of you" for rank in range(4)],
    "system_info": [
        "rank 0: pid N, CPU, master localhost, N MB",
        "rank 1: pid N, CPU, master localhost, N MB",
        "2 ranks use N MB",
    ],
    "debuggee": [
        "it raised ValueError('bad rank'), in:",
        "   in to_debug",
        "   in work",
        "   in bad_rank",
        "the others: [1, 3, 5, 7, 7, 9, 11, 11, 13, 15, 15, 19]",
    ],
    "failures": [
        "an endpoint raised ZeroDivisionError; its actor lives",
        "a process died, and the call that waited for it was told",
        "the others go on: 4.0",
        "the owner was told: rank 1 of procs: it was killed by SIGKILL "
        "(process failure: Killed(sig=9))",
    ],
    "distributed": ["[(2, 3.0), (2, 3.0)]"],
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXPECTED, "test_recovery"}


@pytest.mark.long_but(2)
@pytest.mark.parametrize("spelling", ["", pytest.param("older", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, spelling: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py"), *filter(None, [spelling])],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [_plain(line) for line in done.stdout.splitlines()]
    expected = EXPECTED[name]
    if name == "toy_actors":
        # Four processes print at once, each with a name in front.
        lines, expected = sorted(lines), sorted(expected)
    assert lines == expected


def _plain(line: str) -> str:
    """A line without what is different each time."""
    line = re.sub(r"^\[toys.*?\d\] ", "", line)
    line = re.sub(r"pid \d+, \w+", "pid N, CPU", line)
    return re.sub(r"\d+ MB", "N MB", line)


@pytest.mark.long
def test_the_example_of_a_test_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recovery.py"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
