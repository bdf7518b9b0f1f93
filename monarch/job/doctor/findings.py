"""Turns a probe's answer into findings, one a line, each with a way to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from monarch.version import __version__
from monarch_sync.words import byte_size

Level = Literal["ok", "note", "warning", "failure"]

_GIB = 1 << 30
_MIB = 1 << 20
_LITTLE_DISK, _FEW_INODES = 5 * _GIB, 10_000
_NO_DISK = 512 * _MIB
_LITTLE_SHM = 256 * _MIB
_NO_SHM = 32 * _MIB
_FEW_FILES = 1024
_SKEW_SECONDS = 2.0
_OLDEST_PYTHON = (3, 10)
_MAY_DIFFER = ("the number of GPUs", "the GPU", "the driver")


class Finding(NamedTuple):
    """One finding: ``where`` is a host or a topic; ``mend`` says how to fix it."""

    level: Level
    where: str
    text: str
    mend: str = ""


def of_host(
    name: str, told: Mapping[str, Any], skew_seconds: float, *, brings_monarch: bool
) -> Iterator[Finding]:
    """Yield the findings of one host's answer. ``brings_monarch``: a host without monarch gets
    it."""
    python = tuple(told.get("python", (0, 0, 0)))
    version = ".".join(map(str, python))
    if python[:2] < _OLDEST_PYTHON:
        yield Finding(
            "failure", name, f"Python is {version}, and 3.10 or later is needed",
            "name another one there with `python` in monarch.toml",
        )  # fmt: skip
    if "time" not in told:
        return
    packages = told["packages"]
    yield from _of_monarch(name, packages, brings_monarch)
    if abs(skew_seconds) > _SKEW_SECONDS:
        ahead = "ahead of" if skew_seconds > 0 else "behind"
        yield Finding(
            "warning", name, f"its clock is {abs(skew_seconds):.1f} s {ahead} this machine's: "
            "times in logs and of files will not fit",
            "have it follow a time server: `timedatectl set-ntp true`",
        )  # fmt: skip
    yield from _of_folders(name, told["folders"])
    yield from _of_shm(name, told["shm"])
    yield from _of_gpus(name, told["gpus"], packages)
    if told["port"]:
        yield Finding(
            "failure", name, f"the host agent's port cannot be listened at: {told['port']}",
            "a host agent of another job may be there: end it, or choose another `port` (0: any)",
        )  # fmt: skip
    if 0 < told["files"] < _FEW_FILES:
        yield Finding(
            "warning", name, f"a process may have only {told['files']} files open",
            "raise it with `ulimit -n`, or in /etc/security/limits.conf",
        )  # fmt: skip


def _of_monarch(name: str, packages: Mapping[str, str], brings_monarch: bool) -> Iterator[Finding]:
    there = packages.get("monarch-loop")
    if there == __version__ or (there is None and brings_monarch):
        return
    what = (
        "monarch is not installed" if there is None else f"monarch is {there}, here {__version__}"
    )
    if brings_monarch:
        yield Finding("note", name, f"{what}: `monarch apply` brings this version along")
    else:
        yield Finding(
            "failure", name, what,
            f"install it there: `pip install monarch-loop=={__version__}`",
        )  # fmt: skip


def _of_folders(name: str, folders: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for what, folder in folders.items():
        path, free = folder["path"], int(folder["free"])
        mend = "make room there" if what == "home" else "make room there, or set TMPDIR"
        if folder["problem"]:
            yield Finding("failure", name, f"cannot write to {path}: {folder['problem']}", mend)
        elif 0 <= free < _LITTLE_DISK:
            level: Level = "failure" if free < _NO_DISK else "warning"
            yield Finding(level, name, f"only {byte_size(free)} are free in {path}", mend)
        elif 0 <= int(folder["inodes"]) < _FEW_INODES:
            yield Finding(
                "warning", name, f"only {folder['inodes']} more files fit in {path}", mend
            )


def _of_shm(name: str, free: int) -> Iterator[Finding]:
    if free < 0:
        yield Finding("warning", name, "there is no /dev/shm: NCCL and data loaders need it")
    elif free < _LITTLE_SHM:
        level: Level = "failure" if free < _NO_SHM else "warning"
        yield Finding(
            level, name, f"only {byte_size(free)} of shared memory (/dev/shm) are free",
            "of a container: start it with a larger --shm-size, or mount one of medium Memory",
        )  # fmt: skip


def _of_gpus(name: str, gpus: Mapping[str, Any], packages: Mapping[str, str]) -> Iterator[Finding]:
    if gpus["problem"]:
        yield Finding(
            "failure", name, f"the GPUs' driver does not work: {gpus['problem']}",
            "reload the driver, or reboot the machine",
        )  # fmt: skip
    elif gpus["devices"] > len(gpus["found"]):
        yield Finding(
            "warning", name,
            f"of {gpus['devices']} GPU devices nvidia-smi shows {len(gpus['found'])}",
            "look with `nvidia-smi` and `dmesg` there: one may have fallen off the bus",
        )  # fmt: skip
    torch = packages.get("torch", "")
    if gpus["found"] and torch.endswith("+cpu"):
        yield Finding(
            "warning", name, f"it has GPUs, and torch {torch}, which cannot use them",
            "install a build of torch for CUDA there",
        )  # fmt: skip
    for number, gpu in enumerate(gpus["found"]):
        with_others = _share(gpu)
        if with_others > 0.1:
            yield Finding(
                "warning", name, f"GPU {number} is in use: {with_others:.0%} of its memory",
                "see whose with `nvidia-smi` there",
            )  # fmt: skip


def _share(gpu: Mapping[str, str]) -> float:
    try:
        return float(gpu["used"]) / float(gpu["memory"])
    except (ValueError, ZeroDivisionError, KeyError):
        return 0.0


def of_all(told: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the differences between hosts that should be equal."""
    whole = {name: one for name, one in told.items() if "time" in one}

    def of(take: Callable[[Mapping[str, Any]], str]) -> dict[str, str]:
        return {name: take(one) for name, one in whole.items()}

    for what, values in (
        ("Python", of(lambda one: ".".join(map(str, one["python"][:2])))),
        ("torch", of(lambda one: str(one["packages"].get("torch", "none")))),
        ("NCCL", of(lambda one: _nccl(one["packages"]))),
        ("the architecture", of(lambda one: str(one["machine"]))),
        ("the number of GPUs", of(lambda one: str(len(one["gpus"]["found"])))),
        ("the GPU", of(lambda one: _first(one["gpus"]["found"], "name"))),
        ("the driver", of(lambda one: _first(one["gpus"]["found"], "driver"))),
    ):
        if len(set(values.values())) > 1:
            by_value: dict[str, list[str]] = {}
            for name, value in values.items():
                by_value.setdefault(value, []).append(name)
            told_by = "; ".join(f"{v} on {', '.join(names)}" for v, names in by_value.items())
            yield Finding(
                "warning" if what in _MAY_DIFFER else "failure", "all hosts",
                f"{what} differs: {told_by}", "install the same on all, or choose others",
            )  # fmt: skip


def _nccl(packages: Mapping[str, str]) -> str:
    return next((v for name, v in packages.items() if name.startswith("nvidia-nccl")), "none")


def _first(gpus: list[Mapping[str, str]], field: str) -> str:
    return gpus[0][field] if gpus else "none"


def summary(told: Mapping[str, Any]) -> str:
    """Describe a host in one line: its Python, CPUs, memory, GPUs and network."""
    if "time" not in told:
        return f"Python {'.'.join(map(str, told.get('python', ())))}"
    gpus = told["gpus"]["found"]
    parts = [
        f"Python {'.'.join(map(str, told['python']))}",
        f"{told['cpus']} CPUs", byte_size(told["memory"]),
        f"{len(gpus)} x {gpus[0]['name']} (driver {gpus[0]['driver']})" if gpus else "no GPU",
    ]  # fmt: skip
    if torch := told["packages"].get("torch"):
        parts.append(f"torch {torch}")
    if told["infiniband"]:
        parts.append(f"InfiniBand {', '.join(told['infiniband'])}")
    return ", ".join(parts)
