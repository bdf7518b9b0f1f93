"""Which folders of a workspace a push would empty on hosts, by what lands where."""

from __future__ import annotations

import pytest

from monarch_sync import Manifest, Workspace, WorkspaceEmptied
from monarch_sync.scanning.emptied import bare_folders, refuse_emptied

from .trees import manifest_of


def manifest(*paths: str) -> Manifest:
    return manifest_of(dict.fromkeys(paths, b"1"))


def emptied(workspace: Workspace, now: Manifest, held: Manifest) -> tuple[str, int] | None:
    try:
        refuse_emptied(workspace, bare_folders(workspace, now), held)
    except WorkspaceEmptied as error:
        return error.folder, error.num_files
    return None


ONE = Workspace(dirs={"/here": ""})
TWO = Workspace(dirs={"/a": "a", "/b": "b"})
INSIDE = Workspace(dirs={"/whole": "", "/part": "lib/part"})


@pytest.mark.parametrize(
    ("workspace", "now", "held", "expected"),
    [
        (ONE, [], ["x", "y"], ("/here", 2)),
        (ONE, [], [], None),
        (ONE, ["new"], ["x", "y"], None),
        (TWO, ["a/x"], ["a/x", "b/x"], ("/b", 1)),
        (TWO, ["a/x"], ["a/x"], None),
        (TWO, ["a/x"], ["a/x", "bb"], None),
        (INSIDE, ["x"], ["x", "lib/part/x"], ("/part", 1)),
        (INSIDE, ["lib/part/x"], ["x", "lib/part/x"], ("/whole", 1)),
        (INSIDE, ["lib/part/x"], ["lib/part/x"], None),
        (INSIDE, ["lib/x"], ["lib/x", "lib/other"], None),
    ],
)
def test_what_a_push_would_empty(
    workspace: Workspace, now: list[str], held: list[str], expected: tuple[str, int] | None
) -> None:
    assert emptied(workspace, manifest(*now), manifest(*held)) == expected


def test_two_folders_that_land_in_one_place_speak_for_each_other() -> None:
    both = Workspace(dirs={"/a": "", "/b": ""})
    assert emptied(both, manifest("of_a"), manifest("of_a", "of_b")) is None
    assert emptied(both, manifest(), manifest("of_a")) == ("/a", 1)


def test_it_says_what_to_do() -> None:
    text = str(WorkspaceEmptied("/data", 1))
    assert "'/data'" in text
    assert "1 file of it" in text
    assert "`monarch sync --allow-empty`" in text
    assert "sync_workspace(..., allow_empty=True)" in text
    assert "1,234 files" in str(WorkspaceEmptied("/data", 1234))
