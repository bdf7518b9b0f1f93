"""What the documentation shows is run, and the demo is run as a person would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import Program, is_running, wait_for

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples/dev_loop.py"
MARK = "MONARCH_TEST_MARK"


def python_blocks(text: str) -> list[str]:
    """The blocks that are to be run."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", python_blocks((ROOT / "README.md").read_text()))
def test_a_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_the_readme_has_a_block_to_run() -> None:
    assert python_blocks((ROOT / "README.md").read_text())


@pytest.fixture
def demo(program: Callable[..., Program], tmp_path: Path) -> Iterator[Callable[[], Program]]:
    """Starts the demo, with everything that it leaves below one folder."""
    mark = str(tmp_path)

    def start() -> Program:
        return program(
            f"import runpy, sys; sys.argv = [{str(DEMO)!r}]\n"
            f"sys.path[0] = {str(DEMO.parent)!r}\n"
            f"runpy.run_path({str(DEMO)!r}, run_name='__main__')",
            TMPDIR=mark, PYTHONUNBUFFERED="1", **{MARK: mark},
        )  # fmt: skip

    yield start
    for process in _marked(mark):
        process.kill()


def _marked(mark: str) -> list[psutil.Process]:
    """The processes that inherited our environment, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            pass
    return [process for process in found if is_running(process.pid)]


@pytest.mark.long
@pytest.mark.timeout(260)
def test_the_demo_reaches_its_target(demo: Callable[[], Program], tmp_path: Path) -> None:
    started = demo()
    assert started.wait(240) == 0, started.story()
    accuracy = re.search(r"held-out accuracy\D+(\d+\.\d)%", "\n".join(started.lines))
    assert accuracy is not None, started.story()
    assert float(accuracy[1]) > 95
    assert "one edit refused" in started.story()
    wait_for(lambda: not _marked(str(tmp_path)), 20.0, "its processes to end")
    assert list(tmp_path.glob("monarch-demo-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    ["1  bring up two hosts", "✓ gen 1", "2  edit the loss"],
)
def test_an_interrupted_demo_leaves_nothing(
    moment: str, demo: Callable[[], Program], tmp_path: Path
) -> None:
    started = demo()
    wait_for(lambda: any(moment in line for line in started.lines), 60.0, moment)
    started.send_signal(signal.SIGINT)
    assert started.wait(30) == 130, started.story()
    assert "Traceback" not in started.story()
    wait_for(lambda: not _marked(str(tmp_path)), 10.0, "its processes to end")
    assert list(tmp_path.glob("monarch-demo-*")) == []


def test_the_demo_stays_short() -> None:
    assert len(DEMO.read_text().splitlines()) <= 150
