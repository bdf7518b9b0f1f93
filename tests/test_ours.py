"""What is ours to remove, and what is not, whatever a file says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch import ours
from monarch.ours import NotOurs, check_folder, make_folder, remove_folder

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act for somebody else")


def test_a_folder_that_was_made_is_removed_with_what_is_in_it(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "job" / "host"))
    (tmp_path / "job" / "host" / "file").write_text("x")
    assert (tmp_path / "job" / "host").stat().st_mode & 0o777 == 0o700
    remove_folder(tmp_path / "job" / "host", tmp_path, mark=ours.MARK)
    assert os.listdir(tmp_path / "job") == []
    remove_folder(tmp_path / "job" / "host", tmp_path, mark=ours.MARK)  # It is not there.


def test_a_folder_without_the_mark_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    with pytest.raises(NotOurs, match="was not made by monarch"):
        remove_folder(tmp_path / "mine", tmp_path, mark=ours.MARK)
    with pytest.raises(NotOurs, match="no name that monarch gives"):
        remove_folder(tmp_path / "mine", tmp_path, name=r"job-\w+")
    assert (tmp_path / "mine" / "thesis").exists()


@pytest.mark.parametrize("way", ["..", ".", "below/..", "../other", "/"])
def test_a_path_that_leads_out_of_the_root_stays(tmp_path: Path, way: str) -> None:
    for name in ("below", "other"):
        make_folder(str(tmp_path / name))
    with pytest.raises(NotOurs):
        remove_folder(os.path.join(tmp_path / "below", way), tmp_path / "below", mark=ours.MARK)
    assert (tmp_path / "other").exists()
    assert (tmp_path / "below").exists()


@pytest.mark.parametrize("where", ["job", "job/host", "job/host/.made-by-monarch"])
def test_a_link_anywhere_on_the_way_leads_to_nothing_that_is_removed(
    tmp_path: Path, where: str
) -> None:
    make_folder(str(tmp_path / "elsewhere" / "host"))
    (tmp_path / "elsewhere" / ours.MARK).touch()
    (tmp_path / "elsewhere" / "host" / "file").write_text("x")
    root = tmp_path / "root"
    target = {"job": "elsewhere", "job/host": "elsewhere/host"}.get(where, "elsewhere/host/file")
    make_folder(str((root / where).parent))
    (root / where).unlink(missing_ok=True)
    (root / where).symlink_to(tmp_path / target)
    with pytest.raises(NotOurs):
        remove_folder(root / "job" / "host", root, mark=ours.MARK)
    assert (tmp_path / "elsewhere" / "host" / "file").exists()


@only_root
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "theirs"))
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(NotOurs, match="another user"):
        check_folder(tmp_path / "theirs", tmp_path, mark=ours.MARK)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "job-1").write_text("x")
    with pytest.raises(NotOurs):
        remove_folder(tmp_path / "job-1", tmp_path, name=r"job-\w+")
    assert (tmp_path / "job-1").exists()
