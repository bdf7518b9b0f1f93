from __future__ import annotations

import pytest

from monarch.net.machine import machine_id
from monarch.wire.host_url import HostUrl


@pytest.mark.parametrize(
    ("text", "advertise", "bind"),
    [
        ("tcp://gpu7:26600", "tcp://gpu7:26600", "tcp://gpu7:26600"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("tcp://[::1]:80", "tcp://[::1]:80", "tcp://[::1]:80"),
        ("ipc:///run/me/agent", "ipc:///run/me/agent", "ipc:///run/me/agent"),
        ("tcp://gpu7:1@tcp://0.0.0.0:2", "tcp://gpu7:1", "tcp://0.0.0.0:2"),
        ("proc-7@tcp://gpu7:1", "tcp://gpu7:1", "tcp://gpu7:1"),
        ("w<2Mu>@tcp://gpu7:1@tcp://0.0.0.0:2", "tcp://gpu7:1", "tcp://0.0.0.0:2"),
    ],
)
def test_addresses_that_are_understood(text: str, advertise: str, bind: str) -> None:
    assert HostUrl.parse(text) == HostUrl(advertise, bind)


@pytest.mark.parametrize(
    "text",
    [
        "", "gpu7", "gpu7:26600", "tcp://gpu7", "tcp://:80", "tcp://", "ipc://", "http://gpu7:80",
        "tcp://gpu7:many", "tcp://gpu7:99999", "tcp://gpu7:1@", "tcp://gpu7:1@gpu7", "@", "@@",
        "tcp://[::1:80",
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="address of a host agent"):
        HostUrl.parse(text)


def test_a_star_says_what_to_write_instead() -> None:
    with pytest.raises(NotImplementedError, match=r"tcp://NAME:PORT@tcp://0\.0\.0\.0:PORT"):
        HostUrl.parse("tcp://*:26600")


def test_whoever_knows_the_address_knows_the_uid() -> None:
    one, same = HostUrl.parse("tcp://a:1"), HostUrl.parse("tcp://a:1@tcp://0.0.0.0:1")
    assert one.uid == same.uid
    assert one.uid != HostUrl.parse("tcp://a:2").uid


def test_only_a_unix_socket_is_known_to_be_on_this_machine() -> None:
    assert HostUrl.parse("ipc:///x").address(machine_id()).machine == machine_id()
    assert HostUrl.parse("tcp://localhost:1").address(machine_id()).machine == ""
