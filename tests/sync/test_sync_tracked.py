"""What git tracks although its rules leave it out, as it goes and comes back under a watch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_sync import Workspace
from tests.sync.test_sync_watch import Asking


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def asking(folder: Path) -> Iterator[Asking]:
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("lib/\n")
    (folder / "lib/deep").mkdir(parents=True)
    for name in ("a.py", "deep/b.py", "junk"):
        (folder / "lib" / name).write_text("1\n")
    git(folder, "add", "-f", "lib/a.py", "lib/deep/b.py")
    asking = Asking(Workspace({folder: ""}))
    assert asking.look() is None
    yield asking
    asking.watcher.close()


def look_anew(asking: Asking, folder: Path) -> None:
    """Rules that say the same again have everything looked at."""
    rules = folder / ".gitignore"
    rules.write_bytes(rules.read_bytes())
    assert asking.look() is None


def test_a_folder_that_is_restored_is_watched_again(asking: Asking, folder: Path) -> None:
    shutil.rmtree(folder / "lib")
    asking.look()
    (folder / "lib/deep").mkdir(parents=True)
    (folder / "lib/a.py").write_text("2\n")
    asking.look()
    (folder / "lib/deep/b.py").write_text("2\n")
    asking.look()
    (folder / "lib/a.py").write_text("3\n")
    asking.look()
    (folder / "lib/deep/b.py").write_text("3\n")
    assert asking.look() == {folder / "lib/deep/b.py"}


@pytest.mark.parametrize("gone", ["lib", "lib/deep", "lib/deep/b.py"])
def test_what_was_not_there_at_the_last_look_at_everything(
    asking: Asking, folder: Path, gone: str
) -> None:
    (folder / gone).rename(folder.with_name("away"))
    asking.look()
    look_anew(asking, folder)
    folder.with_name("away").rename(folder / gone)
    asking.look()
    (folder / "lib/deep/b.py").write_text("2\n")
    assert asking.look() == {folder / "lib/deep/b.py"}


def test_a_folder_with_nothing_left_of_it_goes_along(asking: Asking, folder: Path) -> None:
    (folder / "lib/deep/b.py").unlink()
    asking.look()
    (folder / "lib/a.py").unlink()
    asking.look()
    (folder / "lib/a.py").write_text("2\n")
    asking.look()


def test_a_folder_in_the_place_of_a_file_is_not_what_git_tracks(
    asking: Asking, folder: Path
) -> None:
    (folder / ".gitignore").write_text("lib/\ndata/\n")
    (folder / "data").write_text("1\n")
    git(folder, "add", "data")
    asking.look()
    (folder / "data").unlink()
    (folder / "data").mkdir()
    (folder / "data/junk").touch()
    asking.look()
    assert asking.scanner.manifest is not None
    assert "data" not in asking.scanner.manifest
    look_anew(asking, folder)
    assert "data" not in asking.scanner.manifest


def test_a_folder_comes_with_rules_of_its_own(asking: Asking, folder: Path) -> None:
    """What git tracks there was not left out before."""
    for place in (folder / "pkg", folder.with_name("away")):
        (place / "deep").mkdir(parents=True)
        (place / "a.log").write_text("1\n")
        (place / "deep/b.py").write_text("1\n")
    (folder.with_name("away") / ".gitignore").write_text("*.log\ndeep/\n")
    git(folder, "add", "pkg")
    asking.look()
    (folder / "pkg").rename(folder.with_name("gone"))
    folder.with_name("away").rename(folder / "pkg")
    asking.look()
    (folder / "pkg/deep/b.py").write_text("2\n")
    assert asking.look() == {folder / "pkg/deep/b.py"}
    assert asking.scanner.manifest is not None
    assert "pkg/a.log" in asking.scanner.manifest


def test_what_appears_beside_it_is_not_watched(asking: Asking, folder: Path) -> None:
    num_watched = len(asking.watcher._live.folders)  # type: ignore[union-attr]
    (folder / "lib/built/deep").mkdir(parents=True)
    assert asking.look() is not None
    assert len(asking.watcher._live.folders) == num_watched  # type: ignore[union-attr]
