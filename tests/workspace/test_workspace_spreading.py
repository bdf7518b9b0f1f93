"""Content that comes to many hosts by way of others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.config import configured
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.node import Node
from monarch.runtime.workspace.pushing import spreading
from monarch.wire.address import ProcAddress
from monarch.wire.message import Sync
from tests.workspace.conftest import Project, replica_of

NUM_HOSTS = 7


@pytest.fixture
def many() -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": NUM_HOSTS})
    yield made
    made.kill()


@pytest.fixture
def hosts(many: ProcessJob, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostMesh]:
    """Hosts as if each were a machine of its own; two are sent to by the author."""
    monkeypatch.setattr(spreading, "is_far", lambda host: True)
    with configured(sync_relay_bytes=1, sync_relay_degree=2):
        yield many.state(cached_path=None).trainers


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sync, int]]:
    """What this process sends to hosts of a push: to whom, the order, bytes of content."""
    found: list[tuple[str, Sync, int]] = []
    real = Node.send

    def send(self: Node, to: ProcAddress, message: Any, data: Any = b"", blobs: Any = ()) -> None:
        if isinstance(message, Sync) and self is process.current().node:
            found.append((to.uid, message, sum(map(len, blobs))))
        real(self, to, message, data, blobs)

    monkeypatch.setattr(Node, "send", send)
    return found


def write(project: Project) -> dict[str, bytes]:
    texts = {"large.bin": os.urandom(3 << 20)}
    texts |= {f"package/module{i}.py": f"X = {i}\n".encode() * 400 for i in range(30)}
    for name, text in texts.items():
        path = project.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
    return texts


def test_each_host_has_all_of_it_and_the_author_sent_it_to_two(
    project: Project, many: ProcessJob, hosts: HostMesh, sent: list[tuple[str, Sync, int]]
) -> None:
    texts = write(project)
    report = project.sync(hosts)
    assert report.ok, str(report)
    for index in range(NUM_HOSTS):
        for name, text in texts.items():
            assert (replica_of(many, index) / name).read_bytes() == text
    with_content = [(order, size) for _, order, size in sent if size]
    assert len(with_content) == 2
    assert sum(len(order.onward) for order, _ in with_content) == NUM_HOSTS - 2
    # What follows knows what each has, whoever it came from.
    sent.clear()
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(hosts).ok
    assert sum(size for _, _, size in sent) < 2000
    for index in range(NUM_HOSTS):
        assert "SCALE = 2" in (replica_of(many, index) / "stepper.py").read_text()


@pytest.mark.long_but(1)
@pytest.mark.parametrize("best_effort", [True, False])
def test_a_host_that_is_lost_with_it_in_hand_keeps_it_from_nobody_else(
    best_effort: bool, project: Project, many: ProcessJob, hosts: HostMesh, faults: list[Any],
    sent: list[tuple[str, Sync, int]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert project.sync(hosts).ok
    sent.clear()
    write(project)
    heads: list[str] = []
    real = spreading.Spread.send

    def send(self: spreading.Spread) -> None:
        if len(self._hosts) > 2:
            # The first one ends before it has got anything that it could pass on.
            heads.append(self._hosts[0].uid)
            pid = next(h.pid for h in many.hosts if h.url in self._hosts[0].urls)
            os.kill(pid, signal.SIGKILL)
        real(self)

    monkeypatch.setattr(spreading.Spread, "send", send)
    report = project.sync(hosts, best_effort=best_effort)
    assert report.ok == best_effort, str(report)
    assert len(heads) == 1
    told = [host.error for host in report.hosts if host.error] if best_effort else report.errors
    assert len(told) == 1, str(report)
    there = [(replica_of(many, index) / "large.bin").exists() for index in range(NUM_HOSTS)]
    assert sum(there) == (NUM_HOSTS - 1 if best_effort else 0)
