"""Where uv looks, when pip is told where to look; and what installs when there is no uv."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("install", PROJECT / "tools/install.py")
assert _spec is not None
assert _spec.loader is not None
install = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(install)

SETTINGS = """\
:env:.find-links='/wheels /more-wheels'
global.constraint='/etc/constraints.txt'
global.extra-index-url='file:///a/simple\\nfile:///b/simple'
global.index-url='https://index.invalid/simple'
global.find-links='/old'
global.progress-bar='off'
"""


def test_uv_looks_where_pip_does() -> None:
    assert install.variables_of_uv(SETTINGS, {}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more-wheels",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_INDEX": "file:///a/simple file:///b/simple",
        "UV_DEFAULT_INDEX": "https://index.invalid/simple",
    }


def test_what_is_set_for_uv_stays() -> None:
    environment = {"UV_DEFAULT_INDEX": "https://mine.invalid", "UV_INDEX_STRATEGY": "first-index"}
    variables = install.variables_of_uv(SETTINGS, environment)
    assert not variables.keys() & environment.keys()


def test_the_settings_of_pip_are_read_as_pip_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nextra-index-url =\n    file:///a/simple\n    file:///b/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    variables = install.variables_of_uv(listed.stdout, {})
    assert variables["UV_INDEX"] == "file:///a/simple file:///b/simple"
    assert variables["UV_NO_INDEX"] == "1"


def _write_uv(folder: Path, status: int) -> Path:
    """A program named uv that notes its arguments, and ends with ``status``."""
    folder.mkdir()
    program = folder / "uv"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\nexit {status}\n')
    program.chmod(0o755)
    return folder / "asked"


def _asked_of_pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    asked: list[list[str]] = []
    monkeypatch.setattr(install.Pip, "install", lambda _, words: asked.append(words) or True)
    return asked


@pytest.mark.parametrize("status", [0, 1])
def test_pip_installs_what_uv_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _write_uv(tmp_path / "bin", status)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    of_pip = _asked_of_pip(monkeypatch)
    assert install.main(["--says", "a thing", "a-thing>=1"]) == 0
    words = f"pip install --python {sys.executable} --quiet a-thing>=1"
    assert asked.read_text().split("\n")[0] == words
    assert of_pip == ([["a-thing>=1"]] if status else [])
    assert capsys.readouterr().out.startswith("Installing a thing.\n")


@pytest.mark.parametrize(
    ("has_gpu", "is_in_reach", "expected"),
    [
        (True, False, ["torch==1", "x"]),
        (False, True, ["torch==1", "x"]),
        (False, False, ["--torch-backend", "cpu", "torch==1", "x"]),
    ],
)
def test_torch_is_a_cpu_build_where_no_gpu_is(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, is_in_reach: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(install, "TORCH", "torch==1")
    monkeypatch.setattr(install, "_has_gpu", lambda: has_gpu)
    asked: list[list[str]] = []

    class Uv:
        def has_cpu_torch(self) -> bool:
            return is_in_reach

        def install(self, words: list[str]) -> bool:
            asked.append(words)
            return True

    assert install._install_by_uv(Uv(), True, ["x"])
    assert asked == [expected]
