"""The example of sync without hosts follows a folder, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.support import Program, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples/sync/mirror.py"


def test_a_folder_follows_another(program: Callable[..., Program], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a.py").write_text("1")
    started = program(
        f"import runpy, sys; sys.argv = [{str(EXAMPLE)!r}, {str(source)!r}, {str(target)!r}, "
        f"'--watch']\nrunpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    assert started.line("1 files", timeout=60) == ""
    assert (target / "a.py").read_text() == "1"
    (source / "a.py").write_text("2")
    wait_for(lambda: (target / "a.py").read_text() == "2")
    (source / "a.py").rename(source / "b.py")
    wait_for(lambda: (target / "b.py").exists() and not (target / "a.py").exists())
    started.send_signal(signal.SIGINT)
    assert started.wait() == 0, started.story()
