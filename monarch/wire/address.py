"""Who is where: the addresses that travel in messages and inside pickled references."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets

import msgspec

__all__ = ["ActorAddress", "PortAddress", "ProcAddress", "machine_id", "new_uid"]

Uid = str


def new_uid() -> Uid:
    """A name that no other process or mesh has: 12 hexadecimal digits."""
    return secrets.token_hex(6)


class ProcAddress(msgspec.Struct, frozen=True, array_like=True):
    """One process: its uid, and where it listens.

    ``urls`` is empty while the process is still coming up; then ``host_urls`` says where the
    host agent listens that knows. ``machine`` tells whether a Unix socket can reach it.
    """

    uid: Uid
    urls: tuple[str, ...] = ()
    machine: str = ""
    host_uid: Uid = ""
    host_urls: tuple[str, ...] = ()


class ActorAddress(msgspec.Struct, frozen=True, array_like=True):
    """One actor: its process, and the uid of the actor mesh it is a member of."""

    proc: ProcAddress
    actor: Uid


class PortAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where answers go: a process, and a number that it gave out.

    ``is_channel``: what arrives is kept until somebody asks for it.
    """

    proc: ProcAddress
    port: int
    is_channel: bool = False


@functools.cache
def machine_id() -> str:
    """The same for two processes only if they share a kernel, a pid and a mount namespace.

    Host names lie (containers share them or have several); the boot id with the namespaces'
    inodes does not. Only then do a process's pid and its Unix sockets mean the same to both.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "mnt")]
    except OSError:
        boot, spaces = _boot_without_linux(), []
    return hashlib.sha256(f"{boot}:{spaces}".encode()).hexdigest()[:16]


def _boot_without_linux() -> str:
    """A Mac's boot, by its own name. Elsewhere each process is a machine of its own to others."""
    import subprocess  # On Linux it is not needed for this.

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return secrets.token_hex(8)
