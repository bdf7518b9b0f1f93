"""What a notebook shows of a run."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

from monarch.runs.record.folder import RunFolder
from monarch.runs.record.record import LineDisplay, Record


def words_of(run: RunFolder) -> str:
    return re.sub(r"<[^>]*>", " ", run._repr_html_())


def test_a_notebook_shows_how_a_run_stands_and_its_last_figures(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "ddp-1")
    run.path.mkdir()
    run.note_command(["monarch", "run", "ddp", "--steps", "8"])
    record = Record(run.path, LineDisplay(io.StringIO()))
    record.event("begun", "begun", pid=0, started=time.time())
    record.metrics(4, 8, {"loss": 2.5, "accuracy": 0.25})
    record.metrics(5, 8, {"loss": 0.125})
    record.event("ended", "stopped", status="stopped")
    shown = " ".join(words_of(run).split())
    assert shown == "ddp-1 recipe ddp status stopped step 5 of 8 loss 0.125 accuracy 0.25"


def test_what_a_run_has_in_its_files_is_text_in_a_notebook(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "<b>x")
    run.path.mkdir()
    run.note_command(["monarch", "run", "<script>alert(1)</script>"])
    record = Record(run.path, LineDisplay(io.StringIO()))
    record.metrics(1, 2, {"<img src=x>": 1.0, "a\nb": float("nan")})
    shown = run._repr_html_()
    for markup in ("<b>", "<script", "<img", "<a ", "href", 'src="'):
        assert markup not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "empty" in words_of(run)


def test_a_notebook_shows_a_run_without_anything_in_it(tmp_path: Path) -> None:
    shown = " ".join(words_of(RunFolder(tmp_path / "x")).split())
    assert shown == "x recipe - status empty step 0"
