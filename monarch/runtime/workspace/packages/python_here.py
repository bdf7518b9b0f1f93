"""This Python, as far as wheels depend on it: its tag, its platforms, its packages."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable

_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")  # of glibc 2.17, 2.12 and 2.5
_OLDEST_MINOR = 5


def python_tag() -> str:
    """Return this Python's tag; two Pythons with the same tag can use each other's packages."""
    return f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"


def platforms() -> list[str]:
    """Return the platforms of the wheels that run here, best first, by their names in wheels' file
    names."""
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not platform.startswith("linux_"):
        return [platform]
    machine = platform.removeprefix("linux_")
    match = re.fullmatch(r"glibc 2\.(\d+).*", _libc())
    if match is None:
        return [f"musllinux_1_2_{machine}", f"musllinux_1_1_{machine}", platform]
    minors = range(int(match[1]), _OLDEST_MINOR - 1, -1)
    names = [*(f"manylinux_2_{minor}" for minor in minors), *_OLD_NAMES]
    return [*(f"{name}_{machine}" for name in names), platform]


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def installed(path: Iterable[str] | None = None) -> dict[str, str]:
    """Return the versions by name of the packages that can be imported here.

    Fast: it reads only the names of the packages' metadata folders.
    """
    versions: dict[str, str] = {}
    for site in sys.path if path is None else path:
        try:
            names = os.listdir(site or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                project, _, version = name.removesuffix(".dist-info").partition("-")
                versions.setdefault(normalized(project), version)
    return versions


def normalized(name: str) -> str:
    """Return a package's name in its normalized spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()
