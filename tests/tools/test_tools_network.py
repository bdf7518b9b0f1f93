"""Addresses of machines, with a resolver that says what the test wants."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr


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
