"""Two releases that speak different versions of the protocol: each hears it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import attach_to_workers
from monarch.errors import MonarchError
from monarch.net.machine import machine_id
from monarch.runtime.node import Node
from monarch.tools.network import free_port
from monarch.wire.host_url import HostUrl
from monarch.wire.message import PROTOCOL_VERSION, Inspect
from tests.support import Program

SECONDS = 60.0
OTHER = PROTOCOL_VERSION + 1

HOST_OF_ANOTHER_RELEASE = """
# A new Python: what is changed here is imported by others.
import monarch.wire.message as message
message.PROTOCOL_VERSION = {version}
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address={url!r})
"""


@pytest.fixture(params=["ipc", "tcp"])
def url(request: pytest.FixtureRequest, program: Callable[..., Program], tmp_path: Path) -> str:
    """Of a host agent of another release."""
    found = f"ipc://{tmp_path}/host" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    program(HOST_OF_ANOTHER_RELEASE.format(version=OTHER, url=found))
    return found


@pytest.fixture
def asker(url: str, tmp_path: Path) -> Iterator[Node]:
    node = Node("asker")
    node.start()
    node.listen("tcp://127.0.0.1:0" if url.startswith("tcp") else f"ipc://{tmp_path}/asker")
    yield node
    node.close()


def test_who_asks_a_host_of_another_version_hears_both_and_what_to_do(
    asker: Node, url: str
) -> None:
    host = HostUrl.parse(url).address(machine_id())
    for _ in range(2):
        asker.address_book.expect(host)
        asker.address_book.peer_up(host)
        asked = asker.ask(host, Inspect())
        assert asked.wait(SECONDS)
        assert f"version {OTHER}, this process {PROTOCOL_VERSION}" in asked.value.error
        assert "install the same release" in asked.value.error


def test_a_mesh_of_such_hosts_does_not_come_up_and_says_why(url: str, faults: list[Any]) -> None:
    hosts = attach_to_workers(ca=None, workers=[url])
    with pytest.raises(MonarchError, match=f"version {OTHER}, this process {PROTOCOL_VERSION}"):
        hosts.spawn_procs({"gpus": 1}).initialized.get(timeout=SECONDS)
