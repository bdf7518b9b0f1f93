"""Turns a probe's answer into findings, one a line, each with a way to fix it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """Yield the findings of one host's answer.

    With ``brings_monarch``, `monarch apply` brings monarch to the host, so a missing one is no
    failure.
    """
    python = tuple(told.get("python", (0, 0, 0)))
    version = ".".join(map(str, python))
    if python[:2] < _OLDEST_PYTHON:
        text = f"Python is {version}, and 3.10 or later is needed"
        mend = "name another one there with `python` in monarch.toml"
        yield Finding("failure", name, text, mend)
    if "time" not in told:
        return
    packages = told["packages"]
    yield from _of_monarch(name, packages, brings_monarch)
    if abs(skew_seconds) > _SKEW_SECONDS:
        ahead = "ahead of" if skew_seconds > 0 else "behind"
        text = (
            f"its clock is {abs(skew_seconds):.1f} s {ahead} this machine's: times in logs and of "
            "files will not fit"
        )
        mend = "have it follow a time server: `timedatectl set-ntp true`"
        yield Finding("warning", name, text, mend)
    yield from _of_folders(name, told["folders"])
    yield from _of_shm(name, told["shm"])
    yield from _of_gpus(name, told["gpus"], packages)
    if told["port"]:
        text = f"the host agent's port cannot be listened at: {told['port']}"
        mend = "a host agent of another job may be there: end it, or choose another `port` (0: any)"
        yield Finding("failure", name, text, mend)
    if 0 < told["files"] < _FEW_FILES:
        text = f"a process may have only {told['files']} files open"
        mend = "raise it with `ulimit -n`, or in /etc/security/limits.conf"
        yield Finding("warning", name, text, mend)


def _of_monarch(name: str, packages: Mapping[str, str], brings_monarch: bool) -> Iterator[Finding]:
    version = packages.get("monarch-loop")
    if version == __version__ or (version is None and brings_monarch):
        return
    text = f"monarch is {version}, here {__version__}" if version else "monarch is not installed"
    if brings_monarch:
        yield Finding("note", name, f"{text}: `monarch apply` brings this version along")
    else:
        mend = f"install it there: `pip install monarch-loop=={__version__}`"
        yield Finding("failure", name, text, mend)


def _of_folders(name: str, folders: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for key, folder in folders.items():
        path, free = folder["path"], int(folder["free"])
        mend = "make room there" if key == "home" else "make room there, or set TMPDIR"
        if folder["problem"]:
            yield Finding("failure", name, f"cannot write to {path}: {folder['problem']}", mend)
        elif 0 <= free < _LITTLE_DISK:
            level: Level = "failure" if free < _NO_DISK else "warning"
            yield Finding(level, name, f"only {byte_size(free)} are free in {path}", mend)
        elif 0 <= int(folder["inodes"]) < _FEW_INODES:
            text = f"only {folder['inodes']} more files fit in {path}"
            yield Finding("warning", name, text, mend)


def _of_shm(name: str, free: int) -> Iterator[Finding]:
    if free < 0:
        yield Finding("warning", name, "there is no /dev/shm: NCCL and data loaders need it")
    elif free < _LITTLE_SHM:
        level: Level = "failure" if free < _NO_SHM else "warning"
        text = f"only {byte_size(free)} of shared memory (/dev/shm) are free"
        mend = "of a container: start it with a larger --shm-size, or mount one of medium Memory"
        yield Finding(level, name, text, mend)


def _of_gpus(name: str, gpus: Mapping[str, Any], packages: Mapping[str, str]) -> Iterator[Finding]:
    if gpus["problem"]:
        text = f"the GPUs' driver does not work: {gpus['problem']}"
        yield Finding("failure", name, text, "reload the driver, or reboot the machine")
    elif gpus["devices"] > len(gpus["found"]):
        text = f"of {gpus['devices']} GPU devices nvidia-smi shows {len(gpus['found'])}"
        mend = "look with `nvidia-smi` and `dmesg` there: one may have fallen off the bus"
        yield Finding("warning", name, text, mend)
    torch = packages.get("torch", "")
    if gpus["found"] and torch.endswith("+cpu"):
        text = f"it has GPUs, and torch {torch}, which cannot use them"
        yield Finding("warning", name, text, "install a build of torch for CUDA there")
    for number, gpu in enumerate(gpus["found"]):
        share = _used_share(gpu)
        if share > 0.1:
            text = f"GPU {number} is in use: {share:.0%} of its memory"
            yield Finding("warning", name, text, "see whose with `nvidia-smi` there")


def _used_share(gpu: Mapping[str, str]) -> float:
    try:
        return float(gpu["used"]) / float(gpu["memory"])
    except (ValueError, ZeroDivisionError, KeyError):
        return 0.0


def of_all(told: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for each fact in which hosts differ, and should be alike."""
    facts = {name: _facts_of(answer) for name, answer in told.items() if "time" in answer}
    for fact in next(iter(facts.values()), {}):
        hosts: dict[str, list[str]] = {}
        for name in facts:
            hosts.setdefault(facts[name][fact], []).append(name)
        if len(hosts) > 1:
            values = "; ".join(f"{value} on {', '.join(names)}" for value, names in hosts.items())
            level: Level = "warning" if fact in _MAY_DIFFER else "failure"
            mend = "install the same on all, or choose others"
            yield Finding(level, "all hosts", f"{fact} differs: {values}", mend)


def _facts_of(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a host that should equal those of the other hosts, by the fact's name."""
    packages, gpus = told["packages"], told["gpus"]["found"]
    nccl = (version for name, version in packages.items() if name.startswith("nvidia-nccl"))
    return {
        "Python": ".".join(map(str, told["python"][:2])),
        "torch": str(packages.get("torch", "none")),
        "NCCL": next(nccl, "none"),
        "the architecture": str(told["machine"]),
        "the number of GPUs": str(len(gpus)),
        "the GPU": gpus[0]["name"] if gpus else "none",
        "the driver": gpus[0]["driver"] if gpus else "none",
    }


def summary(told: Mapping[str, Any]) -> str:
    """Describe a host in one line: its Python, CPUs, memory, GPUs and network."""
    if "time" not in told:
        return f"Python {'.'.join(map(str, told.get('python', ())))}"
    gpus = told["gpus"]["found"]
    parts = [
        f"Python {'.'.join(map(str, told['python']))}",
        f"{told['cpus']} CPUs",
        byte_size(told["memory"]),
        f"{len(gpus)} x {gpus[0]['name']} (driver {gpus[0]['driver']})" if gpus else "no GPU",
    ]
    if torch := told["packages"].get("torch"):
        parts.append(f"torch {torch}")
    if told["infiniband"]:
        parts.append(f"InfiniBand {', '.join(told['infiniband'])}")
    return ", ".join(parts)
