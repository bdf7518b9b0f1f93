"""Addresses of machines, with a resolver that says what the test wants."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest

from monarch.tools.network import (
    LOOPBACK,
    AddrType,
    address_for,
    free_port,
    get_ipaddr,
    get_sockaddr,
    given_ports,
)


def _resolver(monkeypatch: pytest.MonkeyPatch, v6: list[str], v4: list[str]) -> None:
    def getaddrinfo(host: str, port: int, family: int, kind: int) -> list[Any]:
        found = v6 if family == socket.AF_INET6 else v4
        if not found:
            raise socket.gaierror("no such name")
        return [(family, kind, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("v6", "v4", "kind", "address", "with_port"),
    [
        (["2001::1"], ["10.0.0.1"], AddrType.Default, "2001::1", "[2001::1]:80"),
        (["2001::1"], ["10.0.0.1"], AddrType.IPv4, "10.0.0.1", "10.0.0.1:80"),
        (["2001::1"], ["10.0.0.1"], AddrType.IPv6, "2001::1", "[2001::1]:80"),
        ([], ["10.0.0.1"], AddrType.Default, "10.0.0.1", "10.0.0.1:80"),
        (["fe80::1%eth0"], ["10.0.0.1"], AddrType.Default, "10.0.0.1", "10.0.0.1:80"),
        (["fe80::1", "2001::2"], [], AddrType.Default, "2001::2", "[2001::2]:80"),
    ],
)
def test_addresses(
    monkeypatch: pytest.MonkeyPatch,
    v6: list[str],
    v4: list[str],
    kind: AddrType,
    address: str,
    with_port: str,
) -> None:
    _resolver(monkeypatch, v6, v4)
    assert get_ipaddr("host", 80, kind) == address
    assert get_sockaddr("host", 80, kind) == with_port


@pytest.mark.parametrize(
    ("v6", "v4", "kind"),
    [
        ([], [], AddrType.Default),
        (["fe80::1"], [], AddrType.Default),
        (["2001::1"], ["169.254.1.1"], AddrType.IPv4),
        ([], ["10.0.0.1"], AddrType.IPv6),
    ],
)
def test_there_may_be_none(
    monkeypatch: pytest.MonkeyPatch, v6: list[str], v4: list[str], kind: AddrType
) -> None:
    _resolver(monkeypatch, v6, v4)
    with pytest.raises(RuntimeError, match="host has no usable"):
        get_ipaddr("host", 80, kind)


def test_a_free_port_is_none_that_a_connection_may_take() -> None:
    given = given_ports()
    assert all(10_000 <= port < 65_536 and port not in given for port in map(_free, range(20)))
    assert all(free_port(range(10_000, 40_000)) >= 40_000 for _ in range(20))


def test_where_connections_may_take_all_ports_one_of_them_is_given() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port(range(1024, 65_536))))


def test_a_seed_does_not_choose_the_port() -> None:
    found = set()
    for _ in range(10):
        random.seed(0)
        found.add(free_port())
    assert len(found) > 1


def _free(_: int) -> int:
    return free_port()


_ROUTES = {
    "ours": ("203.0.113.10", "203.0.113.10"),
    "gpu2": ("10.0.0.1", "10.0.0.2"),
    "same machine": ("127.0.0.1", "127.0.0.1"),
}


class RoutedSocket:
    """A datagram socket of a machine whose own name leads to an interface of its own."""

    def __init__(self, family: int, kind: int) -> None:
        self._own, self._peer = "", ""

    def __enter__(self) -> RoutedSocket:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def connect(self, address: tuple[str, int]) -> None:
        if address[0] not in _ROUTES:
            raise OSError("no route")
        self._own, self._peer = _ROUTES[address[0]]

    def getsockname(self) -> tuple[str, int]:
        return self._own, 1

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 9


@pytest.mark.parametrize(
    ("peers", "address"),
    [
        (("ours", "gpu2"), "10.0.0.1"),
        (("gpu2", "ours"), "10.0.0.1"),
        (("nowhere", "gpu2"), "10.0.0.1"),
        (("ours",), "203.0.113.10"),
        (("same machine",), LOOPBACK),
        ((), LOOPBACK),
    ],
)
def test_others_are_told_an_address_that_they_reach(
    monkeypatch: pytest.MonkeyPatch, peers: tuple[str, ...], address: str
) -> None:
    monkeypatch.setattr(socket, "socket", RoutedSocket)
    assert address_for(peers) == address
