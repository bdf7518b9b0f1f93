"""Asking hosts that are gone, and hosts that hang."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.net.machine import machine_id
from monarch.runtime.hosts.asking import NOBODY_THERE, inspect_hosts
from monarch.runtime.node import Node
from monarch.tools.network import free_port
from monarch.wire.host_url import HostUrl

LONG = 600.0
"""Longer than a test may take: who waits for this to pass does not pass."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node("asker")
    made.start()
    made.listen(f"ipc://{tmp_path}/asker")
    yield made
    made.close()


def ask(node: Node, *urls: str, seconds: float) -> list[str]:
    """Return the errors of hosts, which are asked by names such as people give them."""
    addresses = {
        f"gpu{number}": HostUrl.parse(url).address(machine_id()) for number, url in enumerate(urls)
    }
    for address in addresses.values():
        node.address_book.expect(address)
        node.address_book.peer_up(address)
    found = inspect_hosts(node, addresses, seconds=seconds)
    return [found[name].error for name in addresses]


def test_where_nobody_listens_is_found_without_waiting(node: Node, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/left")  # as of a host that was killed
    urls = [f"ipc://{tmp_path}/{name}" for name in ("never", "left")]
    urls.append(f"tcp://127.0.0.1:{free_port()}")
    assert ask(node, *urls, seconds=LONG) == [NOBODY_THERE] * 3


def test_hosts_that_hang_are_waited_for_together(node: Node, tmp_path: Path) -> None:
    listening = []
    for number in range(200):
        listening.append(socket.socket(socket.AF_UNIX))
        listening[-1].bind(f"{tmp_path}/{number}")
        listening[-1].listen()
    try:
        urls = [f"ipc://{tmp_path}/{number}" for number in range(200)]
        errors = ask(node, *urls, seconds=1.0)
    finally:
        for one in listening:
            one.close()
    assert all(error.startswith("no answer within 1 s") for error in errors)
