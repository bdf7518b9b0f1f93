"""``monarch sync`` where a folder is empty that hosts have files of."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from monarch.job import job_load
from monarch_sync import Workspace, WorkspaceEmptied

from .conftest import PROJECT, Folder
from .test_cli_sync_watch import Command


@pytest.fixture
def up(folder: Folder) -> Folder:
    """Hosts that have ``data/a.txt``, and an empty folder in its place."""
    folder.write("monarch.toml", PROJECT.replace('["."]', '["code", "data"]'))
    for name in ("code", "data"):
        (folder.path / name).mkdir()
    folder.write("code/module.py", "")
    folder.write("data/a.txt", "a")
    folder.monarch("apply")
    folder.monarch("sync")
    (folder.path / "data/a.txt").unlink()
    return folder


@pytest.mark.long
def test_it_is_refused_in_the_same_words_everywhere(up: Folder) -> None:
    data = up.path / "data"
    words = str(WorkspaceEmptied(str(data), 1))
    assert up.monarch("sync", status=1) == f"monarch: {words}\n"
    said = json.loads(up.monarch("sync", "--json", status=1))
    assert (said["event"], said["message"]) == ("error", words)
    job = job_load(up.path / ".monarch/job_state.json")
    workspace = Workspace(dirs={up.path / "code": "code", data: "data"})
    with pytest.raises(WorkspaceEmptied) as caught:
        asyncio.run(job.state(cached_path=None).trainers.sync_workspace(workspace))
    assert str(caught.value) == words
    assert (up.replica(1) / "data/a.txt").read_text() == "a"


@pytest.mark.long
def test_a_dry_run_says_so(up: Folder) -> None:
    said = up.monarch("sync", "--dry-run", status=1)
    assert "delete                data/a.txt" in said
    assert f"it would be refused: {WorkspaceEmptied(str(up.path / 'data'), 1)}" in said
    assert json.loads(up.monarch("sync", "--dry-run", "--json", status=1))["refused"]
    assert "refused" not in up.monarch("sync", "--dry-run", "--allow-empty")


@pytest.mark.long
def test_who_says_so_may_and_a_rollback_brings_it_back_or_takes_it(up: Folder) -> None:
    assert up.monarch("sync", "--allow-empty").startswith("✓ gen 2")
    assert not (up.replica() / "data/a.txt").exists()
    assert up.monarch("sync").startswith("✓ gen 2  0 files")
    up.monarch("sync", "rollback")
    assert (up.replica() / "data/a.txt").read_text() == "a"
    up.monarch("sync", "rollback", "2")
    assert not (up.replica() / "data/a.txt").exists()


def test_a_watch_tells_once_and_goes_on_when_it_is_back(up: Folder, command: Command) -> None:
    watcher = command("sync", "--watch")
    words = str(WorkspaceEmptied(str(up.path / "data"), 1))
    watcher.line(f"✗ {words}", timeout=60)
    watcher.line("watching ")
    up.write("code/module.py", "A = 1\n")
    up.write("whole.txt", "a").rename(up.path / "data/a.txt")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    (up.path / "data/a.txt").unlink()  # seen by now, so this is meant
    watcher.line("✓ gen 3  1 file deleted → 2 hosts")
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 0, watcher.story()
    assert sum(line.startswith("✗") for line in watcher.lines) == 1
