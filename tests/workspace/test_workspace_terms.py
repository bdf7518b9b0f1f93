"""A host that has heard of a later owner in an author's place obeys none of those before it."""

from __future__ import annotations

import pytest

from monarch.actor import HostMesh
from monarch.core.code_switch.table import successor_of
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.wire.address import Uid
from monarch.wire.message import InspectFiles, Sync, TakeBack
from monarch_sync.messages import Abort, Commit, Refused, decode, encode
from tests.workspace.conftest import Project, replica_of
from tests.workspace.test_workspace_bad_peers import ask


@pytest.fixture
def author() -> Uid:
    """Of the pushes here, who can speak in the names of its successors, too."""
    return process.current().node.uid


def test_a_late_order_to_take_files_back_is_not_obeyed(
    project: Project, job: ProcessJob, hosts: HostMesh, author: Uid
) -> None:
    assert project.sync(hosts).ok
    old = (project.root / "stepper.py").read_text()
    new = old + "# new\n"
    project.write("stepper.py", new)
    number = project.sync(hosts).generation

    def shown() -> str:
        return (replica_of(job) / "stepper.py").read_text()

    def asked(name: Uid) -> str:
        return ask(hosts, lambda port: TakeBack(number, port, author, name), b"").error

    def inspected(name: Uid) -> Response:
        return ask(hosts, lambda port: InspectFiles(number, port, author, name), b"")

    assert inspected(successor_of(author, 2)).body["generation"] == number
    for late in ("", successor_of(author, 1)):
        assert "has taken the place" in asked(late)
        assert shown() == new
    assert "has taken the place" in inspected(successor_of(author, 1)).error
    assert asked(successor_of(author, 2)) == ""
    assert shown() == old


def test_a_late_order_to_show_or_drop_files_is_not_obeyed(
    project: Project, hosts: HostMesh, author: Uid
) -> None:
    number = project.sync(hosts).generation + 1
    ask(hosts, lambda port: InspectFiles(number, port, author, successor_of(author, 1)), b"")
    refused = ask(hosts, lambda port: Sync(port, author), encode(Commit(number)))
    reply = decode(refused.body["reply"])
    assert isinstance(reply, Refused)
    assert "has taken the place" in reply.reason
    ask(hosts, lambda port: Sync(port, author), encode(Abort(number)))
    # The author lives, as it turns out, and pushes under the same number.
    project.write("more.py", "A = 1\n")
    assert project.sync(hosts).generation == number
