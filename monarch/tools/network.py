"""Addresses of machines by name."""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import random
import socket
from pathlib import Path

__all__ = ["AddrType", "free_port", "get_ipaddr", "get_sockaddr", "host_name"]


class AddrType(enum.Enum):
    """Which kind of address; ``Default`` is IPv6 where there is one, else IPv4."""

    Default = "default"
    IPv4 = "ipv4"
    IPv6 = "ipv6"


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def host_name() -> str:
    """A name of this machine that resolves, at least here."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """An address that other machines can use. Raises ``RuntimeError`` when there is none."""
    return _resolve(hostname, port, addr_type)[1]


def get_sockaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """The same with the port: ``10.0.0.1:80``, or ``[2001::1]:80``."""
    family, address = _resolve(hostname, port, addr_type)
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"


def free_port() -> int:
    """A TCP port that nobody has here now, for somebody who will listen at it in a while.

    The system gives none of this kind to a connection or to who asks for port 0, so that nobody
    takes it by accident before.
    """
    # Not by the program's own generator: ranks that share a seed would all choose the same.
    chooser = random.SystemRandom()
    given = _given_ports()
    kept = [port for port in range(10_000, 65_536) if port not in given]
    for port in [*chooser.sample(kept, min(50, len(kept))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found: int = probe.getsockname()[1]
            return found
    raise RuntimeError("no TCP port of this machine is free")


def _given_ports() -> range:
    """Those that the system gives to connections."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(49_152, 65_536)  # What IANA has set apart for them; macOS keeps to it.
    return range(int(first), int(last) + 1)


def _resolve(hostname: str, port: int, addr_type: AddrType) -> tuple[int, str]:
    for family in _FAMILIES[addr_type]:
        try:
            found = socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM)
        except socket.gaierror:
            continue
        for _, _, _, _, where in found:
            # A link-local address means nothing without naming the interface.
            if not ipaddress.ip_address(str(where[0]).partition("%")[0]).is_link_local:
                return family, str(where[0])
    raise RuntimeError(f"{hostname} has no usable {addr_type.value} address")
