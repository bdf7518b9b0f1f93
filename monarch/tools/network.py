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
    """A kind of address; ``Default`` is IPv6 if there is one, else IPv4."""

    Default = "default"
    IPv4 = "ipv4"
    IPv6 = "ipv6"


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def host_name() -> str:
    """Return a name of this machine that resolves, at least here."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return LOOPBACK
    return name


def address_for(peers: Sequence[str]) -> str:
    """Return the address to listen at so that these machines can connect, and few others.

    ``peers`` are names or addresses, also of this machine; without them it is loopback. Nothing is
    sent.
    """
    routes = [route for peer in peers if (route := _route_to(peer))]
    # The machine's own name may lead to an address that others do not reach.
    routes.sort(key=lambda route: route.is_to_itself)
    for route in routes:
        if not ipaddress.ip_address(route.own).is_loopback:
            return route.own
    return LOOPBACK if routes or not peers else socket.gethostbyname(host_name())


def interface_towards(address: str) -> str | None:
    """Return the name of the network interface by which an address is reached; ``None`` if there is
    no route to the address, or its interface is not found.
    """
    route = _route_to(address)
    if route is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", os.fsencode(name))
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                local = ipaddress.ip_address(answer[20:24])
                is_loopback = local.is_loopback and route.own.startswith("127.")
                if is_loopback or str(local) == route.own:
                    return name
    return None


class _Route(NamedTuple):
    """The address of this machine as another machine sees it."""

    own: str
    is_to_itself: bool


def _route_to(host: str) -> _Route | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only chooses the route.
            probe.connect((host, 9))
        except OSError:
            return None
        own: str = probe.getsockname()[0]
        return _Route(own, is_to_itself=own == probe.getpeername()[0])


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """Return an address that other machines can use. Raises ``RuntimeError`` if there is none."""
    return _resolve(hostname, port, addr_type)[1]


def get_sockaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """Return the address of ``get_ipaddr`` with the port: ``10.0.0.1:80``, or ``[2001::1]:80``."""
    family, address = _resolve(hostname, port, addr_type)
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"


def free_port(given: range | None = None) -> int:
    """Return a TCP port that no program uses, for a program that will listen at it soon.

    The system gives it neither to a connection nor to a program that asks for port 0, so that no
    other program gets it by accident. ``given`` are the ports that the system gives, by default
    those of ``given_ports``.
    """
    # The system's generator, as ranks that share a seed would all choose the same.
    chooser = random.SystemRandom()
    given = given_ports() if given is None else given
    reserved = [port for port in range(10_000, 65_536) if port not in given]
    for port in [*chooser.sample(reserved, min(50, len(reserved))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise RuntimeError("no TCP port of this machine is free")


def given_ports() -> range:
    """Return the ports that the system gives to connections."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(49_152, 65_536)  # IANA's range for them, which macOS uses.
    return range(int(first), int(last) + 1)


def _resolve(hostname: str, port: int, addr_type: AddrType) -> tuple[int, str]:
    for family in _FAMILIES[addr_type]:
        try:
            infos = socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM)
        except socket.gaierror:
            continue
        for *_, address in infos:
            # A link-local address is useless without the interface.
            host = str(address[0])
            if not ipaddress.ip_address(host.partition("%")[0]).is_link_local:
                return family, host
    raise RuntimeError(f"{hostname} has no usable {addr_type.value} address")
