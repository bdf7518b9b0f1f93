"""Where a process listens for TCP connections, by the kernel's word."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from pathlib import Path

__all__ = ["listened_at", "outer_address"]

_LISTENING = "0A"


def listened_at(pid: int) -> set[str]:
    """The addresses, without ports; "0.0.0.0" or "::" for all interfaces."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        if Path(f"/proc/{pid}/net/{name}").exists()
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        _readable(row[1].partition(":")[0])
        for row in rows
        if row[3] == _LISTENING and row[9] in inodes
    }


def _readable(digits: str) -> str:
    # Each 32 bits in the order of the machine.
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)


def outer_address() -> str | None:
    """An address of this machine that is not loopback; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing. 192.0.2.0/24 is for documentation: nobody is there.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if ipaddress.ip_address(address).is_loopback else address
