"""The examples about TorchTitan train a small Llama on two procs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/titan"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_spec("torchtitan") is None,
        reason="torchtitan is not installed: pip install 'monarch-loop[titan]'",
    ),
]

# Of the ranks, whose lines are gathered by likeness, only what cannot be taken apart.
EXPECTED = {
    "workflow": [
        "Creating process mesh...",
        "Training completed successfully!",
        "Ping!",
        "Job terminated successfully",
        "Workflow completed!",
    ],
    "notebook": [
        "Initializing actor:",
        "Done training",
        "the same processes: True",
    ],
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXPECTED}


@pytest.mark.skipif(
    find_spec("torchtitan") is not None and not metadata.version("torchtitan").startswith("0.2."),
    reason="the examples are upstream's, for TorchTitan 0.2: with a JobConfig",
)
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in EXPECTED[name]:
        assert expected in done.stdout
    # Both wrote TorchTitan's own checkpoint of the last step.
    assert list(tmp_path.glob("outputs/**/checkpoint/step-3/.metadata"))


@pytest.mark.huge
def test_the_block_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (FOLDER.parents[1] / "docs/titan.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "block.py").write_text(block)
    prepare = "from monarch.cli.entry import main; main()"
    for command in (["-c", prepare, "recipe", "prepare", "titan-tiny", "."], ["block.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=580
        )
        assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FSDP 2 7.")
    assert lines[1].endswith("step-1")
    assert lines[2] == "tensor 2 from step 1 2"
