"""The scripts of the pages "from torchrun", "from Lightning", ... run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monarch.runs.recipe.script_source import calls_step, is_plain_script
from tests.cli.command_folder import CommandFolder

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "from_torchrun.md": ("torch", ["--steps", "5"], "rank {rank}: loss "),
    "from_ray_train.md": ("torch", ["--steps", "5"], "rank {rank} of 2: trained"),
    "from_lightning.md": ("lightning", [], "rank {rank} of 2: fitted"),
    "from_hf_trainer.md": ("transformers", [], "rank {rank} of 2: trained"),
}


def script_of(page: str) -> str:
    (script,) = re.findall(
        r'^```python title="train.py"\n(.*?)^```', (DOCS / page).read_text(), re.M | re.S
    )
    return script


@pytest.mark.parametrize("page", PAGES)
def test_its_script_is_a_plain_one_that_lets_edits_in(page: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script_of(page))
    compile(path.read_text(), "train.py", "exec")
    assert is_plain_script(str(path))
    assert calls_step(path)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_its_script_runs(page: str, tmp_path: Path) -> None:
    package, flags, said = PAGES[page]
    pytest.importorskip(package, reason=f"{package} is not installed")
    folder = CommandFolder(tmp_path)
    folder.write("train.py", script_of(page))
    folder.monarch("run", "train.py", "--procs", "2", "--", *flags)
    for rank in range(2):
        log = (tmp_path / f"runs/latest/logs/rank{rank}.log").read_text()
        assert said.format(rank=rank) in log
