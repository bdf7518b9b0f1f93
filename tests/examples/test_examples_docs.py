"""What the pages in docs/ show is run; what they say of commands and fields is so."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from monarch.cli.commands import sync
from monarch_sync import HostReport, Refusal, SyncReport

DOCS = Path(__file__).parents[2] / "docs"


def blocks() -> list[tuple[str, str]]:
    """The blocks that are to be run, with the page they stand on."""
    return [
        (page.name, block)
        for page in sorted(DOCS.glob("*.md"))
        if page.name != "titan.md"  # it takes a minute, and has a test of its own
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]


@pytest.mark.long
@pytest.mark.parametrize(("page", "block"), blocks(), ids=[page for page, _ in blocks()])
def test_a_block_runs_and_prints_what_it_says(page: str, block: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-W", "error", "block.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={"TMPDIR": str(tmp_path), "MONARCH_RUNTIME_DIR": os.environ["MONARCH_RUNTIME_DIR"]},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for expected in re.findall(r"print\(.*\)  # ([^:\n]*)", block):
        if not expected.startswith(("a ", "and ")):
            assert expected.removesuffix(" again") in done.stdout


def test_there_are_blocks() -> None:
    assert {"sync.md", "reload.md"} <= {page for page, _ in blocks()}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_option_and_command_is_documented() -> None:
    text = (DOCS / "sync_reference.md").read_text()
    for name in sync.commands:
        assert f"monarch sync {name}" in text
    for parameter in sync.params:
        if parameter.name not in ("file", "help") and not getattr(parameter, "hidden", False):
            assert any(option in text for option in parameter.opts), parameter.opts


@pytest.mark.parametrize("kind", [SyncReport, HostReport, Refusal])
def test_every_field_of_a_report_is_documented(kind: type) -> None:
    text = (DOCS / "sync_reference.md").read_text()
    for field in dataclasses.fields(kind):
        assert f"`{field.name}`" in text, field.name


def test_the_plot_is_one() -> None:
    root = xml.fromstring((DOCS / "sync_latency.svg").read_text())
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) >= 4
    for line in lines:
        assert all(float(number) >= 0 for number in re.split("[ ,]", line.attrib["points"]))
