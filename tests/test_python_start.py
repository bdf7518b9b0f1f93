"""A Python that we start imports nothing from the folder that it starts in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch.job.doctor.probe_session import probe_here
from monarch.python_start import ALONE, module_arguments, text_arguments

SHADOWED = (
    "json",
    "runpy",
    "socket",
    "zlib",
    "base64",
    "monarch",
    "tempfile",
    "threading",
    "types",
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules that say that they have run; the current one."""
    (tmp_path / "folder").mkdir()
    for name in SHADOWED:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise ImportError"
        (tmp_path / "folder" / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path / "folder")
    return tmp_path / "ran"


def run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | variables, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip


def test_a_text_imports_nothing_of_the_folder(hostile: Path) -> None:
    said = run(text_arguments("import json, sys; print(json.dumps(sys.argv[1:]))", "a", "b c"))
    assert said.stdout == '["a", "b c"]\n', said.stderr
    assert not hostile.exists()


def test_a_module_imports_nothing_of_the_folder(hostile: Path) -> None:
    said = run(module_arguments("json.tool", "--help"))
    assert "usage" in said.stdout, said.stderr
    assert not hostile.exists()


def test_what_the_user_put_on_the_path_is_found(tmp_path: Path, hostile: Path) -> None:
    (tmp_path / "theirs.py").write_text("import sys\nprint(sys.argv[1:], __name__)")
    said = run(module_arguments("theirs", "x"), PYTHONPATH=str(tmp_path))
    assert said.stdout == "['x'] __main__\n", said.stderr
    assert not hostile.exists()


def test_the_doctor_runs_nothing_of_the_folder(hostile: Path) -> None:
    session = probe_here()
    try:
        session.order({"do": "look"})
        session.answer(deadline=time.monotonic() + 30)
    finally:
        session.close()
    assert not hostile.exists()


def monarch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as it stands in a path of programs: its folder is not where it is called."""
    program = Path(sys.executable).with_name("monarch")
    return subprocess.run(
        [program, *words], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=100, check=False,
    )  # fmt: skip


def put(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text("open('ran', 'a').write(__name__)\nraise ImportError\n")


@pytest.mark.long
def test_to_look_at_a_built_in_recipe_imports_nothing_of_the_folder(tmp_path: Path) -> None:
    for name in ("rich", "click", "msgspec", "json"):
        put(tmp_path, name)
    said = monarch(tmp_path, "recipe", "validate", "ddp")
    assert said.returncode == 0, said.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("look", ["--plan", "--show-origin"])
def test_a_plan_of_a_built_in_recipe_takes_torch_that_is_installed(
    tmp_path: Path, look: str
) -> None:
    put(tmp_path, "torch")
    said = monarch(tmp_path, "run", "ddp", look)
    assert said.returncode == 0, said.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_a_task_of_the_users_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('mine was imported')\n")
    said = monarch(tmp_path, "run", "ddp", "--plan", "task=mine")
    assert "mine was imported" in said.stderr + said.stdout


def test_what_is_sent_to_a_login_drops_the_folder_first() -> None:
    from monarch.job.bundle.bundle_offer import python_arguments
    from monarch.job.kinds import login_session
    from monarch.net import gateway

    texts = [
        login_session._REMOTE, gateway._PROGRAM,
        python_arguments("monarch.runtime.entry.pod_task", 1)[-1],
    ]  # fmt: skip
    assert all(ALONE in text and text.index(ALONE) == text.index("import") for text in texts)
