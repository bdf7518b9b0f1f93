"""Where a host without an installed monarch keeps bundles: a folder of its user's cache.

Needs Python 3.10, and only the standard library: its text is sent over a login
(``monarch/job/kinds/login_session.py``).
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shutil
import stat
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

BUNDLE = "MONARCH_BUNDLE"
"""The variable that has the folder, for processes that are started from it."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_UNUSED_SECONDS = 30 * 24 * 3600.0
_ATTIC = ".new-"
_NAME = re.compile(r"[0-9a-f]{32}|\.new-\w+")
"""The names of folders that are made here."""


def import_from_bundle(
    known: Mapping[str, str], tell: Callable[[Mapping[str, Any]], None], read: Callable[[], str]
) -> list[str] | None:
    """Import our packages from a bundle, and ask for the bundle if this host does not have it yet.

    ``known`` has the digests of bundles by the kind of Python. ``tell`` sends news to clients;
    ``read`` returns the next line from a client. Returns the lines that came before the bundle.
    ``None`` if no bundle could be had; clients were told why.
    """
    early_lines: list[str] = []
    tag = f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"
    base = _cache_folder()
    try:
        folder = _found(base, known.get(tag, ""))
        if not folder:
            tell({"bundle": {"tag": tag, "platforms": _platforms()}})
            for line in iter(read, ""):
                if line.startswith("bundle"):
                    break
                early_lines.append(line)
            else:
                return None
            word, _, rest = line.strip().partition(" ")
            if word != "bundle":
                tell({"error": rest.strip('"')})
                return None
            digest, _, data = rest.partition(" ")
            folder = _unpacked(base, digest, base64.b64decode(data))
    except OSError as error:
        why = error.strerror or error
        tell(
            {
                "error": f"monarch cannot be put into {error.filename or base}: {why}. Make room "
                "there, or name another folder with XDG_CACHE_HOME in the environment of logins"
            }
        )
        return None
    # So that modules of another version are not used any more.
    for name in [module for module in sys.modules if module.partition(".")[0] in _OURS]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    os.environ[BUNDLE] = folder
    return early_lines


_OURS = ("monarch", "monarch_sync", "monarch_reload", "monarch_recipes")


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "monarch", "bundles")


def _found(base: str, digest: str) -> str:
    """Return the folder of a bundle that this host has; "" if it has none."""
    if not _DIGEST.fullmatch(digest):
        return ""
    folder = os.path.join(base, digest)
    try:
        status = os.lstat(folder)
    except OSError:
        return ""
    if not _is_ours(folder) or status.st_mode & 0o022:
        raise PermissionError(1, "others could have changed what is there; remove it", folder)
    with contextlib.suppress(OSError):
        os.utime(folder)  # It is in use: see _trim.
    return folder


def _unpacked(base: str, digest: str, archive: bytes) -> str:
    """Unpack a bundle into a new folder, rename it to its place, and return the path of that place.

    If another process has unpacked the same bundle meanwhile, its folder is used. Raises
    ``OSError`` if the archive has a path that leads out of the folder.
    """
    os.makedirs(base, 0o700, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix=_ATTIC, dir=base)
    folder = os.path.join(base, digest)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
            for member in members:
                parts = member.name.split("/")
                if not member.isreg() or "" in parts or ".." in parts:
                    raise OSError(22, "the bundle has a file that leads out of it", member.name)
                path = os.path.join(fresh, *parts)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                source = members.extractfile(member)
                assert source is not None
                with open(path, "wb") as file:
                    shutil.copyfileobj(source, file)
        try:
            os.rename(fresh, folder)
        except OSError:
            if not _found(base, digest):  # Else another start was quicker, with the same.
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    _trim(base, digest)
    return folder


def _trim(base: str, digest: str) -> None:
    """Remove bundles that were not used for a long time, and unfinished folders of starts that were
    interrupted.
    """
    long_ago = time.time() - _UNUSED_SECONDS
    for name in os.listdir(base):
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):
            is_old = os.lstat(path).st_mtime < long_ago
            if is_old and name != digest and _NAME.fullmatch(name) and _is_ours(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: str) -> bool:
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _platforms() -> list[str]:
    """Return the platforms whose wheels run here, best first."""
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not platform.startswith("linux_"):
        return [platform]
    machine = platform[len("linux_") :]
    try:
        libc = re.match(r"glibc 2\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        libc = None
    if libc is None:
        return [f"musllinux_1_2_{machine}", f"musllinux_1_1_{machine}", platform]
    minors = range(int(libc[1]), 4, -1)
    names = [*(f"manylinux_2_{minor}" for minor in minors), "manylinux2014", "manylinux2010"]
    return [*(f"{name}_{machine}" for name in [*names, "manylinux1"]), platform]
