"""Shows and changes the environment of this process."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from monarch.core.environment import hidden, matches
from monarch.runtime.links.secret import SECRET_VARIABLES
from monarch.wire.message import EnvAsked


def shown_environment(order: EnvAsked) -> dict[str, str]:
    """Return the requested variables, with secrets hidden."""
    environment = at_start() if order.at_start else dict(os.environ)
    return shown(environment, order.patterns, order.salt)


def shown(env: Mapping[str, str], patterns: tuple[str, ...], salt: str) -> dict[str, str]:
    """Return the variables of ``env`` whose names match, with secrets hidden."""
    return {
        name: hidden(_text(name), _text(value), salt)
        for name, value in env.items()
        if matches(name, patterns) and name not in SECRET_VARIABLES
    }


def at_start() -> dict[str, str]:
    """Return the environment at the start of the process, which C libraries read early. A proc
    forked from a template returns the template's environment.
    """
    text = Path("/proc/self/environ").read_bytes().decode("utf-8", "surrogateescape")
    pairs = (item.partition("=") for item in text.split("\0") if item)
    return {name: value for name, _, value in pairs}


def change_environment(values: Mapping[str, str | None]) -> None:
    """Set variables of this process, and unset those that are ``None``."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _text(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def versions() -> dict[str, str]:
    """Return the versions of the software here, by name. Takes a tenth of a second."""
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "kernel": platform.release(),
        "glibc": " ".join(platform.libc_ver()).strip(),
        **_torch(),
        "driver": _driver(),
        "packages": _packages(),
        "ulimit -n": _limit(resource.RLIMIT_NOFILE),
        "ulimit -l": _limit(resource.RLIMIT_MEMLOCK),
        "ulimit -u": _limit(resource.RLIMIT_NPROC),
    }


def _torch() -> dict[str, str]:
    """Return the versions of torch, NCCL and CUDA that are installed here, by name.

    Torch is not imported for that; without it imported, its CUDA version is left out.
    """
    try:
        versions = {"torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        return {"torch": "(not installed)"}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["cuda"] = str(getattr(torch.version, "cuda", None) or "(none)")
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            versions["nccl"] = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            versions["nccl"] = "(none)"
    return versions


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return "(none)"
    return next((word for word in words if word[:1].isdigit() and "." in word), "?")


def _packages() -> str:
    """Return the number of installed packages and a digest of their names and versions, as text."""
    packages = sorted({f"{found.name}=={found.version}" for found in metadata.distributions()})
    return f"{len(packages)}, {hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
