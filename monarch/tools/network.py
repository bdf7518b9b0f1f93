"""Addresses of machines by name."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import ipaddress
import os
import random
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


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


def address_for(peers: Sequence[str]) -> str:
    """Where to listen so that those machines can connect, and no more others than must be.

    Without ``peers`` no other machine can. They may be names or addresses of this machine, too.
    Nothing is sent.
    """
    found = [route for peer in peers if (route := _route_to(peer))]
    # Its own name may lead to an address of this machine that others do not reach.
    found.sort(key=lambda route: route.is_to_itself)
    beyond = [route.own for route in found if not ipaddress.ip_address(route.own).is_loopback]
    if beyond:
        return beyond[0]
    return LOOPBACK if found or not peers else socket.gethostbyname(host_name())


def interface_towards(address: str) -> str | None:
    """The name of the network interface by which an address is reached; None if that is unknown."""
    route = _route_to(address)
    if route is None:
        return None
    wanted = route.own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", os.fsencode(name))
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                has = ipaddress.ip_address(answer[20:24])
                if str(has) == wanted or (has.is_loopback and wanted.startswith("127.")):
                    return name
    return None


class _Route(NamedTuple):
    """The address of this machine as another one sees it."""

    own: str
    is_to_itself: bool


def _route_to(host: str) -> _Route | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only picks the way out.
            probe.connect((host, 9))
        except OSError:
            return None
        own: str = probe.getsockname()[0]
        return _Route(own, is_to_itself=own == probe.getpeername()[0])


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """An address that other machines can use. Raises ``RuntimeError`` when there is none."""
    return _resolve(hostname, port, addr_type)[1]


def get_sockaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """The same with the port: ``10.0.0.1:80``, or ``[2001::1]:80``."""
    family, address = _resolve(hostname, port, addr_type)
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"


def free_port(given: range | None = None) -> int:
    """A TCP port that no program has here now, for one that will listen at it in a while.

    The system gives none of this kind to a connection or to a program that asks for port 0, so that
    no program takes it by accident before. ``given``: the ports that the system gives; by default
    as it says itself.
    """
    # Not by the program's own generator: ranks that share a seed would all choose the same.
    chooser = random.SystemRandom()
    given = given_ports() if given is None else given
    kept = [port for port in range(10_000, 65_536) if port not in given]
    for port in [*chooser.sample(kept, min(50, len(kept))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found: int = probe.getsockname()[1]
            return found
    raise RuntimeError("no TCP port of this machine is free")


def given_ports() -> range:
    """The ports that the system gives to connections."""
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
