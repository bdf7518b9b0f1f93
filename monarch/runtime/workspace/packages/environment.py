"""Environment: the wheels of the packages that a workspace's code needs and its hosts lack.

The author downloads them once, for each kind of Python among the hosts, into a folder that is
pushed with the workspace. So they come through the content store, no host needs a network or an
installer, a late host gets them like any other file, and a rollback reverts them.
`host_environment.py` unpacks them on a host.

Only packages that some host lacks in exactly this version are pushed: packages that hosts already
have (torch, say) are not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from monarch import ours
from monarch.errors import MonarchError
from monarch.python_start import module_arguments
from monarch.runtime.node import Node
from monarch.runtime.workspace.packages.cache import UNFINISHED, used
from monarch.runtime.workspace.packages.lock_files import Needs
from monarch.runtime.workspace.packages.python_here import installed, normalized, python_tag
from monarch.runtime.workspace.packages.wheels import collect
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Inspect
from monarch_sync.content.digest import digest_bytes

_LAST_LINES = 12
_PIP_SECONDS = 3600.0
"""Beyond what building a large package from its sources takes."""


class EnvironmentFailed(MonarchError):
    """The packages could not be downloaded; no host has changed. ``lines``: the last lines of pip's
    output."""

    def __init__(self, reason: str, lines: str = "") -> None:
        super().__init__(reason, lines)
        self.reason = reason
        self.lines = lines

    def __str__(self) -> str:
        output = "".join(f"\n  {line}" for line in self.lines.splitlines())
        return f"the environment was not installed, and no host has changed: {self.reason}{output}"


class HostPython(NamedTuple):
    """The Python of a host: its ``tag``, as ``python_tag`` returns it, its packages by normalized
    name, and the platforms whose wheels it takes. ``is_here``: this program itself runs in that
    Python.
    """

    host: str
    tag: str
    packages: Mapping[str, str]
    platforms: Sequence[str] = ()
    is_here: bool = False


def build(
    needs: Needs, hosts: Sequence[HostPython], cache: Path, pip_arguments: Sequence[str] = ()
) -> Path | None:
    """Return a folder with wheels of the packages that hosts lack; ``None`` if no host lacks any.

    ``pip_arguments`` go to each call of pip, ``["--index-url", ...]`` for example. Blocks for as
    long as pip takes. Raises ``EnvironmentFailed`` if wheels for a host cannot be had, or if this
    program's own environment lacks a package.
    """
    alike: dict[str, list[HostPython]] = {}
    for host in hosts:
        alike.setdefault(host.tag, []).append(host)
    options = {tag: [*pip_arguments, *_options(group)] for tag, group in alike.items()}
    wanted = {tag: _wanted(needs, group, options[tag]) for tag, group in alike.items()}
    if not any(wanted.values()):
        return None
    digest = digest_bytes(repr(sorted(wanted.items())).encode()).hex()
    target = cache / "wheels" / digest
    if not target.is_dir():
        _bring(wanted, options, target)
    used(target)
    return target


def _options(alike: Sequence[HostPython]) -> list[str]:
    """Return options with which pip finds wheels for ``alike``, hosts that have the same kind of
    Python.
    """
    host = alike[0]
    if host.tag == python_tag():
        return []
    match = re.match(r"cpython-(\d)(\d+) on ", host.tag)
    if match is None or not host.platforms:
        raise EnvironmentFailed(
            f"{host.host} runs {host.tag}; wheels can be had here for {python_tag()}, and for "
            "CPython elsewhere"
        )
    # Only the ones that all of them can take.
    fit = [p for p in host.platforms if all(p in other.platforms for other in alike)]
    version, number = ".".join(match.groups()), "".join(match.groups())
    return [
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", version,
        "--abi", f"cp{number}", "--abi", "abi3", "--abi", "none",
        *(part for platform in fit for part in ("--platform", platform)),
    ]  # fmt: skip


class _Package(NamedTuple):
    name: str
    version: str
    requirement: str


def _wanted(needs: Needs, hosts: Sequence[HostPython], options: Sequence[str]) -> list[str]:
    """Return the packages to ask pip for, so that none of these hosts lacks any."""
    packages = _resolve(needs, options)
    for host in hosts:
        missing = [p.requirement for p in packages if host.packages.get(p.name) != p.version]
        if missing and host.is_here:
            raise EnvironmentFailed(
                f"{host.host} runs in this program's own environment, which lacks "
                f"{', '.join(sorted(missing))}: install it there"
            )
    return sorted(
        package.requirement
        for package in packages
        if any(host.packages.get(package.name) != package.version for host in hosts)
    )


def _resolve(needs: Needs, options: Sequence[str]) -> list[_Package]:
    """Return every package that is needed, dependencies included, with its version."""
    if not needs.arguments:
        return []
    with tempfile.TemporaryDirectory(prefix="monarch-environment-") as folder:
        report, exact = Path(folder, "report.json"), Path(folder, "constraints.txt")
        exact.write_text("\n".join(needs.constraints) + "\n")
        run_pip(
            "install", "--dry-run", "--ignore-installed", "--report", str(report),
            "--target", folder,  # Without one, pip looks for no other Python's wheels.
            "--constraint", str(exact), *options, *needs.arguments,
        )  # fmt: skip
        resolved = json.loads(report.read_bytes())
    return [package for item in resolved["install"] if (package := _package(item)) is not None]


def _package(item: Mapping[str, Any]) -> _Package | None:
    """Return a package in pip's report; None for a folder of sources, which is pushed as a
    folder."""
    name, version = normalized(item["metadata"]["name"]), item["metadata"]["version"]
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


def _bring(
    wanted: Mapping[str, Sequence[str]], options: Mapping[str, Sequence[str]], target: Path
) -> None:
    """Download the wheels into a temporary folder, which gets its name when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=target.parent))
    try:
        by_tag = {}
        for number, (tag, requirements) in enumerate(wanted.items()):
            wheels = by_tag[tag] = fresh / str(number)
            wheels.mkdir()
            if requirements and tag == python_tag():
                # A package that comes as sources is built.
                run_pip("wheel", "--no-deps", "-w", str(wheels), *options[tag], *requirements)
            elif requirements:
                run_pip("download", "--no-deps", "-d", str(wheels), *options[tag], *requirements)
        collect(by_tag, fresh)
        for wheels in by_tag.values():
            ours.remove_folder(wheels, fresh, name=r"\d+", ignore_errors=False)
        fresh.chmod(0o755)
        fresh.rename(target)
    except OSError as error:
        if not target.is_dir():  # else another process was quicker, with the same
            raise EnvironmentFailed(f"{target}: {error.strerror}") from None
    finally:
        ours.remove_folder(fresh, target.parent, name=f"{UNFINISHED}.*")


def run_pip(*arguments: str, seconds: float = _PIP_SECONDS) -> None:
    """Run pip. Raises ``EnvironmentFailed`` if it fails, or has not ended after ``seconds``."""
    options = ["--disable-pip-version-check", "--no-input"]
    command = [sys.executable, *module_arguments("pip"), *options, *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        output = bytes(late.output or b"").decode(errors="replace")
        raise EnvironmentFailed(
            f"`pip {arguments[0]}` had not ended after {seconds / 60:.0f} minutes, and was "
            "stopped: does a server not answer, or a build hang?",
            _last_lines(output),
        ) from None
    if done.returncode:
        if "No module named pip" in done.stdout:
            raise EnvironmentFailed(
                f"{sys.executable} has no pip: `python -m ensurepip` (or `uv pip install pip`) "
                "adds it"
            )
        reason = f"`pip {arguments[0]}` ended with {done.returncode}"
        raise EnvironmentFailed(reason, _last_lines(done.stdout))


def _last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-_LAST_LINES:])


def ask_pythons(
    node: Node, hosts: Sequence[ProcAddress], names: Mapping[Uid, str] = MappingProxyType({})
) -> list[HostPython]:
    """Ask all hosts at once for their Pythons; look directly if a host is this process's own.

    ``names`` has the names of hosts, for errors. Raises ``EnvironmentFailed`` if a host does not
    answer, or cannot list its packages.
    """
    pythons: list[HostPython] = []
    asked = []
    for host in hosts:
        if host.uid == node.uid:
            pythons.append(HostPython("this host", python_tag(), installed(), is_here=True))
        else:
            inspect = node.ask(host, Inspect(packages=True))
            asked.append((host, inspect))
    for host, answer in asked:
        answer.wait()
        where = names.get(host.uid) or (host.urls[0] if host.urls else host.uid)
        if answer.value.error:
            raise EnvironmentFailed(f"the host {where} did not answer: {answer.value.error}")
        state = answer.value.answer
        packages = state.packages
        if packages is None or not packages.python:
            raise EnvironmentFailed(
                f"the host {where} cannot say which packages it has; restart its agent"
            )
        pythons.append(
            HostPython(state.host, packages.python, packages.packages, list(packages.platforms))
        )
    return pythons
