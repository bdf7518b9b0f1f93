"""``monarch sync --env``: packages that hosts lack, there with the code that needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheels import make_wheel

from .conftest import Folder

RECIPE = """
from dataclasses import dataclass

from monarch.actor import Actor, ProcMesh, endpoint


@dataclass
class Config:
    pass


class Importer(Actor):
    @endpoint
    def version(self) -> str:
        import tinylib

        return f"{tinylib.VALUE} with {tinylib.DEPENDS}"


def run(config: Config, procs: ProcMesh, display) -> None:
    importers = procs.spawn("importers", Importer)
    display.message(f"found {sorted(set(importers.version.call().get().values()))}")
"""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at; who runs here, and hosts, have a cache of their own."""
    made = tmp_path / "runs/wheels"
    made.mkdir(parents=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "runs/cache"))
    return made


@pytest.mark.long
def test_packages_come_change_and_go_back(folder: Folder, wheels: Path) -> None:
    depends = "import tinydep\nDEPENDS = tinydep.VALUE\n"
    make_wheel(wheels, "tinylib", "1.0", "tinydep", more=depends)
    make_wheel(wheels, "tinylib", "2.0", "tinydep", more=depends)
    make_wheel(wheels, "tinydep", "5.0")
    folder.write("requirements.txt", "tinylib==1.0\n")
    folder.write("importing.py", RECIPE)
    folder.monarch("apply")
    said = folder.monarch("sync", "--env")
    assert "packages of requirements.txt come along as wheels, and hosts install them" in said
    assert "found ['1.0 with 5.0']" in folder.monarch("run", "importing.py")

    folder.write("requirements.txt", "tinylib==2.0\n")
    said = folder.monarch("sync")
    assert "requirements.txt changed: hosts still have the packages of before" in said
    assert "found ['1.0 with 5.0']" in folder.monarch("run", "importing.py")
    assert "come along" in folder.monarch("sync", "--env")
    assert "found ['2.0 with 5.0']" in folder.monarch("run", "importing.py")

    # They are part of a generation.
    assert "is what 1 was" in folder.monarch("sync", "rollback", "1")
    for index in range(2):
        text = (folder.state(index) / "environment/tinylib.py").read_text()
        assert text.startswith("VALUE = '1.0'")


@pytest.mark.long
def test_what_cannot_be_had_is_said_in_pips_words(folder: Folder, wheels: Path) -> None:
    folder.write("requirements.txt", "nolib==1.0\n")
    folder.monarch("apply")
    said = folder.monarch("sync", "--env", status=1)
    assert "no host has changed" in said
    assert "nolib==1.0" in said
    assert "nothing was pushed yet" in folder.monarch("sync", "status")
