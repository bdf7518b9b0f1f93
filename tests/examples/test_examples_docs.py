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
    assert {"sync_library.md", "reload.md", "own_recipe.md"} <= {page for page, _ in blocks()}


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


def test_the_site_has_four_parts_with_every_page() -> None:
    text = (DOCS.parent / "tools/mkdocs.yml").read_text().split("\nnav:\n")[1]
    parts = re.findall(r"^  - ([^:\n]+):$", text, re.M)
    assert parts == ["Start", "Guides", "Reference", "How it works"]
    shown = set(re.findall(r"([a-z_]+\.md)$", text, re.M))
    assert {page.name for page in DOCS.glob("*.md")} <= shown


def guides() -> list[str]:
    text = (DOCS.parent / "tools/mkdocs.yml").read_text()
    return re.findall(r"([a-z_]+\.md)$", text.split("- Guides:")[1].split("- Reference:")[0], re.M)


@pytest.mark.parametrize("page", sorted({*guides()} - {"differences.md", "observe.md"}))
def test_a_guide_begins_with_a_thing_to_copy_and_long_ones_have_contents(page: str) -> None:
    lines = (DOCS / page).read_text().splitlines()
    assert lines[0].startswith("# ")
    assert any(line.startswith(("    ", "```")) for line in lines[1:20]), "a thing to copy"
    if len(lines) > 110:  # Two screens.
        assert sum(line.startswith("## ") for line in lines) >= 4


def test_the_words_that_people_search_for_are_there() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for word in ("fix", "ETA", "fine-tune", "DataLoader", "GPU", "resume", "notebook"):
        assert word in text, word


@pytest.mark.parametrize("page", ["../README.md", "index.md", *guides()])
def test_guides_say_it_in_plain_words(page: str) -> None:
    text = (DOCS / page).read_text()
    assert not re.search(
        r"a mend\b|[Gg]iven again|brought up again|in vain\b|[Hh]eld by a test", text
    )
