"""A file is written whole or not at all, wherever the writing ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from monarch.whole_file import OF_PEOPLE, replacing, write_whole


def _replace(path: Path, content: Any) -> None:
    with replacing(path, is_durable=True) as file:
        file.write(b"ne")
        file.write(content)


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_an_error_at_any_step_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left") as error:
            _replace(path, b"new")
    assert error.value.filename == str(path), "that of a full disk names no file"
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_what_is_raised_while_it_is_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(TypeError):
        _replace(path, None)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_only_what_is_durable_waits_for_the_disk_and_does_so_before_it_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for step in ("fsync", "replace"):
        real = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *on, s=step, r=real: (seen.append(s), r(*on)))
    write_whole(tmp_path / "file", b"1")
    assert seen == ["replace"]
    _replace(tmp_path / "file", b"2")
    assert seen == ["replace", "fsync", "replace"]


def test_a_file_is_private_unless_it_is_a_persons(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "ours", "1")
        write_whole(tmp_path / "theirs", "1", mode=OF_PEOPLE)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "theirs")]
    assert modes == [0o600, 0o640]


def test_files_of_the_product_are_replaced_in_one_place_of_each_package() -> None:
    """``monarch_sync`` and ``monarch_reload`` import nothing of ours, so each has its own. The
    others give another name to what was there, and write nothing."""
    root = Path(__file__).parents[1]
    places = {
        str(path.relative_to(root))
        for folder in ("monarch", "sync", "recipes")
        for path in (root / folder).rglob("*.py")
        if "os.replace(" in path.read_text()
    }
    assert places == {
        "monarch/whole_file.py",
        "monarch/job/state_folder.py",  # a key, where there are no hard links
        "monarch/runs/record/folder.py",  # the link to the latest run
        "monarch/runtime/output/log_files.py",  # a full log file
        "sync/monarch_reload/trial/spare_import.py",
        "sync/monarch_sync/content/disk.py",
    }
