"""A run is looked into from other terminals: held at its error, pushed to, and by an editor."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Folder
from tests.debugger.dap_client import DapClient
from tests.support import Program, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

_FAILS = """
    AMOUNT = 1


    def share(total):
        return total // nothing
    """
_HALVES = """
    AMOUNT = 1


    def share(total):
        half = total / 2
        return half
    """


def debug(folder: Folder, *lines: str) -> str:
    """What a console that is given ``lines`` shows, in the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "monarch.cli.main", "debug"], cwd=folder.path, check=False,
        input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def up(folder: Folder) -> Folder:
    folder.write("amounts.py", _FAILS)
    recipe = (folder.path / "adding.py").read_text()
    recipe = recipe.replace("return self.total, ", "return amounts.share(self.total), ")
    (folder.path / "adding.py").write_text(recipe)
    folder.monarch("apply")
    return folder


def test_a_run_holds_at_its_error_and_goes_on_with_mended_code(
    up: Folder, command: Callable[..., Program]
) -> None:
    running = command("run", "--on-error", "all", "adding.py")
    wait_for(lambda: "adder ranks 0-1     HELD at amounts.py:5 in share" in debug(up, "where"), 60)
    # Each hears of it on a way of its own.
    wait_for(lambda: any("at an error (NameError" in line for line in running.lines), 60)

    shown = debug(up, "attach adder 1", "p total", "detach")
    assert "NameError: name 'nothing' is not defined" in shown
    assert "(Pdb) p total\n1\n" in shown

    refused = up.monarch("sync", "--no-wait", status=1)
    assert refused.startswith("monarch: nothing was pushed: adder 0-1 at amounts.py:5 is held")
    assert "no proc of rank 7 runs" in up.monarch("env", "diff", "0", "7", status=1)

    up.write("amounts.py", _FAILS.replace("// nothing", "* 3"))
    pushing = command("sync")
    wait_for(
        lambda: any("held at amounts.py:5" in line for line in [*pushing.lines, *pushing.errors]),
        60,
    )
    assert "they run again" in debug(up, "redo")
    assert pushing.wait(60.0) == 0, pushing.story()
    assert running.wait(60.0) == 0, running.story()
    assert "nothing is held" not in up.monarch("sync", "--no-wait")


def test_an_editor_attaches_to_all_ranks_and_stops_at_a_line_of_the_authors_file(
    up: Folder, command: Callable[..., Program], tmp_path: Path
) -> None:
    pytest.importorskip("debugpy")
    up.write("amounts.py", _HALVES)
    running = command("run", "adding.py", f"stop_file={tmp_path / 'stop'}")
    wait_for(lambda: "adder" in debug(up, "where"), 60)
    serving = command("debug", "--vscode")
    assert serving.line("2 ranks at 127.0.0.1:", 60.0)
    launch = json.loads((up.path / ".vscode/launch.json").read_text())
    (entry,) = launch["configurations"]
    with ExitStack() as stack:

        def editor(**how: Any) -> DapClient:
            made = DapClient(entry["connect"]["port"])
            stack.callback(made.close)
            made.begin(up.path / "amounts.py", 5, **{**entry, **how})
            return made

        first = editor()
        child = first.event("debugpyAttach")
        second = editor(subProcessId=child["subProcessId"], connect=child["connect"])
        # Each is a rank of another host, with its own copy of the file.
        assert up.replica(0) != up.replica(1)
        for one in (first, second):
            name, file, line, frame = one.stopped_at()
            assert (name, file, line) == ("share", str(up.path / "amounts.py"), 5)
            assert int(one.value("total", frame)) > 0
            # It may begin to trace a round late: this rank must not stop again and keep that from
            # coming.
            one.clear_breakpoints(up.path / "amounts.py")
            one.go_on()
        for one in (second, first):
            one.send("disconnect", terminateDebuggee=False)
    # It ends by itself when the editor has left.
    assert serving.wait(60.0) == 0, serving.story()
    (tmp_path / "stop").touch()
    assert running.wait(60.0) == 0, running.story()


def test_ranks_take_another_editor_when_the_command_that_served_one_has_ended(
    up: Folder, command: Callable[..., Program], tmp_path: Path
) -> None:
    """Killed, or by Ctrl-C while an editor is attached."""
    pytest.importorskip("debugpy")
    up.write("amounts.py", _HALVES)
    running = command("run", "adding.py", f"stop_file={tmp_path / 'stop'}")
    wait_for(lambda: "adder" in debug(up, "where"), 60)
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 0)):
        serving = command("debug", "--vscode")
        assert serving.line("2 ranks at 127.0.0.1:", 60.0), serving.story()
        assert not any("attached" in line for line in serving.errors), serving.story()
        launch = json.loads((up.path / ".vscode/launch.json").read_text())
        (entry,) = launch["configurations"]
        with contextlib.closing(DapClient(entry["connect"]["port"])) as editor:
            editor.begin(up.path / "amounts.py", 5, **entry)
            assert editor.stopped_at()[:3] == ("share", str(up.path / "amounts.py"), 5)
            serving.send_signal(number)
            assert serving.wait(60.0) == status, serving.story()
    (tmp_path / "stop").touch()
    assert running.wait(60.0) == 0, running.story()
