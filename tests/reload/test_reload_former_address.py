"""`monarch_sync.reload`, where `monarch_reload` was: its names and modules are the same objects."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import monarch_reload
import monarch_sync.reload
from monarch_reload.report import ReloadReport
from monarch_sync.reload import Reloader

_MOVED: dict[str, str] = vars(monarch_sync.reload)["_MOVED"]


def test_the_former_address_has_every_public_name() -> None:
    for name in monarch_reload.__all__:
        assert getattr(monarch_sync.reload, name) is getattr(monarch_reload, name)
    assert monarch_sync.reload.__all__ == monarch_reload.__all__
    assert Reloader is monarch_reload.Reloader


@pytest.mark.parametrize("name", sorted(_MOVED))
def test_a_module_at_its_former_address_is_the_one_at_the_new(name: str) -> None:
    module = importlib.import_module(f"monarch_sync.reload.{name}")
    assert module is importlib.import_module(f"monarch_reload.{_MOVED[name]}")
    assert module.__name__ == f"monarch_reload.{_MOVED[name]}"


def test_a_module_that_never_was_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"monarch_sync\.reload\.never"):
        importlib.import_module("monarch_sync.reload.never")


def test_a_pickle_that_names_the_former_address_is_read() -> None:
    past = pickle.dumps(ReloadReport, protocol=0).replace(
        b"cmonarch_reload.report\n", b"cmonarch_sync.reload.report\n"
    )
    assert b"monarch_sync.reload.report" in past
    assert pickle.loads(past) is ReloadReport


def test_both_ways_of_importing_a_former_submodule_work_in_a_fresh_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import monarch_sync.reload.transaction\n"
        "from monarch_sync.reload import flips\n"
        "from monarch_sync.reload.spare import NewState\n"
        "import monarch_reload.reloader, monarch_reload.undo_log, monarch_reload.trial.spare\n"
        "assert monarch_sync.reload.transaction is monarch_reload.reloader\n"
        "assert flips is monarch_reload.undo_log\n"
        "assert NewState is monarch_reload.trial.spare.NewState\n"
        "assert monarch_reload.reloader.__spec__.name == 'monarch_reload.reloader'\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
