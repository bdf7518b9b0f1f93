"""Which machine this process runs on, and for which user."""

from __future__ import annotations

import contextlib
import functools
import getpass
import hashlib
import os
import secrets


@functools.cache
def machine_id() -> str:
    """Return an id that is the same for two processes only if they share a kernel, a pid namespace
    and a mount namespace.

    Host names are no proof (containers share them or have several); the boot id with the
    namespaces' inodes is. Only processes with one id can use each other's pids and Unix sockets.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "mnt")]
    except OSError:
        boot, spaces = _boot_without_linux(), []
    return hashlib.sha256(f"{boot}:{spaces}".encode()).hexdigest()[:16]


def user_name() -> str:
    """Return the name of this process's user; "uid 1000" for a user without a name, as in some
    containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _boot_without_linux() -> str:
    """Return the id of a Mac's boot; on other systems a random one, so that each process counts as
    a machine of its own."""
    import subprocess  # On Linux it is not needed for this.

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return secrets.token_hex(8)
