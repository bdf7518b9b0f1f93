"""Environment: the packages that a workspace's code needs and its hosts lack.

They are installed once, here, from wheels, into a folder of their own. That folder then travels
with the workspace: through the same content store, verified by digest, and shown on every host in
the same commit as the code that needs it, or on none. So no host runs an installer, nothing can be
half installed, a late host gets it like any other file, and a rollback takes it back.

The folder lands behind the workspace's own and in front of the hosts' packages. It holds only what
some host lacks in just this version, so what hosts came with (torch, say) does not travel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch.errors import MonarchError
from monarch.runtime.workspace.lock_files import Needs
from monarch_sync.digest import digest_bytes

__all__ = ["FOLDER", "EnvironmentFailed", "HostPython", "build", "installed", "python_tag"]

FOLDER = "__environment__"
_LAST_LINES = 12


class EnvironmentFailed(MonarchError):
    """The packages could not be had; no host has changed. ``lines``: the last that pip said."""

    def __init__(self, reason: str, lines: str = "") -> None:
        super().__init__(reason, lines)
        self.reason = reason
        self.lines = lines

    def __str__(self) -> str:
        said = "".join(f"\n  {line}" for line in self.lines.splitlines())
        return f"the environment was not installed, and no host has changed: {self.reason}{said}"


class HostPython(NamedTuple):
    """What a host runs: a tag as `python_tag` makes it, and its packages by normalized name."""

    host: str
    tag: str
    packages: Mapping[str, str]


def python_tag() -> str:
    """What wheels have to fit here."""
    return f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"


def installed(path: Iterable[str] | None = None) -> dict[str, str]:
    """The packages that can be imported here, with their versions. Quick: only names are read."""
    found: dict[str, str] = {}
    for site in sys.path if path is None else path:
        try:
            names = os.listdir(site or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                project, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(_normalized(project), version)
    return found


def build(
    needs: Needs, hosts: Sequence[HostPython], cache: Path, pip_arguments: Sequence[str] = ()
) -> Path | None:
    """A folder with the packages that some host lacks; ``None`` if no host lacks any.

    ``pip_arguments`` go to each call of pip, ``["--index-url", ...]`` for example. Blocks for as
    long as pip takes. Raises ``EnvironmentFailed``.
    """
    for host in hosts:
        if host.tag != python_tag():
            raise EnvironmentFailed(
                f"{host.host} runs {host.tag}, and packages made here are for {python_tag()}"
            )
    missing = [
        package
        for package in _resolve(needs, pip_arguments)
        if any(host.packages.get(package.name) != package.version for host in hosts)
    ]
    if not missing:
        return None
    wanted = sorted(package.requirement for package in missing)
    digest = digest_bytes(repr((wanted, python_tag())).encode()).hex()
    target = cache / "environments" / digest
    if not target.is_dir():
        _install(wanted, target, pip_arguments)
    return target


class _Package(NamedTuple):
    name: str
    version: str
    requirement: str


def _resolve(needs: Needs, pip_arguments: Sequence[str]) -> list[_Package]:
    """Every package that is needed, dependencies included, with its version."""
    with tempfile.TemporaryDirectory(prefix="monarch-environment-") as folder:
        report, exact = Path(folder, "report.json"), Path(folder, "constraints.txt")
        exact.write_text("\n".join(needs.constraints) + "\n")
        _pip(
            "install", "--dry-run", "--ignore-installed", "--report", str(report),
            "--constraint", str(exact), *pip_arguments, *needs.arguments,
        )  # fmt: skip
        told = json.loads(report.read_bytes())
    return [package for item in told["install"] if (package := _package(item)) is not None]


def _package(item: Mapping[str, Any]) -> _Package | None:
    """A package in pip's report; None for a folder of sources, which comes along as one."""
    name, version = _normalized(item["metadata"]["name"]), item["metadata"]["version"]
    source = item.get("download_info", {})
    if "dir_info" in source:
        return None
    requirement = f"{name}=={version}"
    if item.get("is_direct"):
        url = source["url"]
        if "vcs_info" in source:
            url = f"{source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}"
        requirement = f"{name} @ {url}"
    return _Package(name, version, requirement)


def _install(wanted: Sequence[str], target: Path, pip_arguments: Sequence[str]) -> None:
    """Install into a fresh folder, which gets its name when all is in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="unfinished-", dir=target.parent))
    try:
        _pip(
            "install", "--no-deps", "--ignore-installed", "--no-compile", "--target", str(fresh),
            *pip_arguments, *wanted,
        )  # fmt: skip
        shutil.rmtree(fresh / "bin", ignore_errors=True)  # Scripts name a Python that is ours.
        fresh.chmod(0o755)
        fresh.rename(target)
    except OSError as error:
        if not target.is_dir():  # else somebody was quicker, with the same
            raise EnvironmentFailed(f"{target}: {error.strerror}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        if "No module named pip" in done.stdout:
            raise EnvironmentFailed(f"{sys.executable} has no pip; `python -m ensurepip` adds it")
        lines = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise EnvironmentFailed(f"`pip {arguments[0]}` ended with {done.returncode}", lines)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
