"""Installs requirements into a virtual environment by uv, which takes a fifth of pip's time.

    .venv/bin/python tools/install.py [--into PYTHON] [--torch] [--says WHAT] REQUIREMENT...

It uses the uv on the PATH, or else installs uv beside the Python that runs this. uv gets the
package indexes that pip is configured to use. If uv cannot be installed, or fails, pip installs.

With ``--torch``, torch is installed too: the CPU build if there is no NVIDIA GPU. The index's plain
torch for Linux brings several gigabytes of CUDA, so the CPU build is taken from whichever source
has it. Arguments that begin with a dash are passed to uv or pip unchanged.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

TORCH = os.environ.get("TORCH_REQUIREMENT", "torch==2.13.0")
# Of pip's settings: uv's variable, and what it has between several values.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}


def variables_of_uv(pip_settings: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make uv look where pip does, from ``pip config list``.

    Variables that are set already are left out: a person has set them for uv.
    """
    # pip takes the best version of all indexes; uv by default that of the first index that has any.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    # Lines are sorted by where a setting comes from; the environment wins over `install`, that
    # over `global`.
    lines = [line.partition("=") for line in pip_settings.splitlines()]
    ranks = {"global": 0, "install": 1, ":env:": 2}
    settings = [(*name.partition("."), value) for name, _, value in lines]
    for section, _, name, value in sorted(settings, key=lambda line: ranks.get(line[0], -1)):
        if section in ranks and name in _VARIABLES:
            variable, between = _VARIABLES[name]
            variables[variable] = between.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in variables.items() if name not in environment}


def find_uv() -> str | None:
    """Return the path of uv; ``None`` if there is none and it cannot be installed.

    uv is found on the PATH or beside this Python. Else pip installs it beside this Python.
    """
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or shutil.which(str(beside))
    if uv is None:
        print("Installing uv, which installs the rest.", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=False)
        uv = shutil.which(str(beside))
    return uv


class _Uv:
    def __init__(self, program: str, python: str) -> None:
        self._command = [program, "pip", "install", "--python", python]
        asked = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=False)
        self._environment = {**os.environ, **variables_of_uv(listed.stdout, os.environ)}

    def install(self, requirements: list[str]) -> bool:
        command = [*self._command, "--quiet", *requirements]
        return subprocess.run(command, env=self._environment, check=False).returncode == 0

    def has_cpu_torch(self) -> bool:
        """Return whether ``torch``, from the configured package sources, is a CPU build."""
        command = [*self._command, "--dry-run", "--no-deps", TORCH]
        plan = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        return plan.returncode == 0 and "+cpu" in plan.stderr + plan.stdout


class Pip:
    def __init__(self, python: str) -> None:
        self._command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]

    def install(self, requirements: list[str]) -> bool:
        return subprocess.run([*self._command, *requirements], check=False).returncode == 0


def _has_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def _has_torch(python: str) -> bool:
    asked = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([python, "-c", asked], check=False).returncode == 0


def _install_by_uv(uv: _Uv, with_torch: bool, requirements: list[str]) -> bool:
    if not with_torch:
        return uv.install(requirements)
    if _has_gpu():
        print(f"A GPU is here: {TORCH} is installed with CUDA.", flush=True)
        return uv.install([TORCH, *requirements])
    print(f"No GPU is here: {TORCH} is installed as its CPU build.", flush=True)
    if uv.has_cpu_torch():
        return uv.install([TORCH, *requirements])
    if uv.install(["--torch-backend", "cpu", TORCH, *requirements]):
        return True
    print("No CPU build could be had: the default one is installed, which runs on a CPU too.")
    return uv.install([TORCH, *requirements])


def install(python: str, with_torch: bool, requirements: list[str]) -> bool:
    """Install the requirements into the environment of ``python``; return whether that worked."""
    with_torch = with_torch and not _has_torch(python)
    program = find_uv()
    if program is not None and _install_by_uv(_Uv(program, python), with_torch, requirements):
        return True
    print("uv cannot install it: pip does, which takes minutes.", flush=True)
    return Pip(python).install([TORCH, *requirements] if with_torch else requirements)


def main(words: list[str]) -> int:
    python, says, with_torch = sys.executable, "", False
    while words and words[0] in ("--into", "--torch", "--says"):
        option = words.pop(0)
        if option == "--torch":
            with_torch = True
        elif option == "--into":
            python = words.pop(0)
        else:
            says = words.pop(0)
    if says:
        print(f"Installing {says}.", flush=True)
    begin = time.monotonic()
    if not install(python, with_torch, words):
        return 1
    if says:
        print(f"Installed {says} in {time.monotonic() - begin:.0f} s.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
