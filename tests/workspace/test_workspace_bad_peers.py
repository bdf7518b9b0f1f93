"""Peers that say nonsense about a workspace: a host agent answers each of them, and goes on."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec
import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.wire.message import Request, Share, Sync, TakeBack
from monarch_sync.messages import Refused, StageRequest, decode, encode
from monarch_sync.tree.entry import Entry, EntryKind
from monarch_sync.tree.manifest import Manifest
from tests.workspace.conftest import Project, replica_of

A = TypeVar("A")

SECONDS = 60.0
SOUND = encode(StageRequest(1, "me", "", b"", b"", [], [], []))


def ask(hosts: HostMesh, request: Request[A], payload: bytes) -> Response[A]:
    (host, *_) = hosts._sync_hosts()
    answer = process.current().node.ask(host, request, payload)
    assert answer.wait(SECONDS), "the host leaves its peer to wait"
    return answer.value


def stage_of(*entries: Entry) -> bytes:
    manifest = Manifest(entries)
    rows = manifest.rows()
    return encode(
        StageRequest(1 << 40, "me", manifest.digest_name, manifest.digest, b"", rows, [], [])
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "it is empty"),
        (SOUND[:-1], "truncated"),
        (SOUND.replace(b"me", b"\xff\xff"), "utf-8"),
        (SOUND[:1] + bytes([SOUND[1] + 1]) + SOUND[2:] + b"\x91" * 100_000, "recursion"),
        (stage_of(Entry("bad\udcff/x", EntryKind.LINK, target="/etc")), "bad\\udcff/x"),
    ],
    ids=["empty", "cut off", "no text", "folded without end", "a bad name"],
)
def test_a_push_that_is_none_is_refused_in_words(
    project: Project, hosts: HostMesh, payload: bytes, says: str
) -> None:
    outcome = ask(hosts, Sync(), payload)
    reply = decode(outcome.answer.reply)
    assert isinstance(reply, Refused)
    assert says in reply.reason + reply.path
    assert project.sync(hosts).ok


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "path",
    [b"../../../../../../dev/zero", b"/dev/zero", b"a\0b", b"pipe\xff"],
    ids=["out", "absolute", "nul", "a pipe whose name is no text"],
)
def test_who_is_to_look_at_a_file_that_is_none_says_so(
    project: Project, job: ProcessJob, hosts: HostMesh, path: bytes
) -> None:
    assert project.sync(hosts).ok
    pipe = os.fsencode(replica_of(job)) + b"/pipe\xff"
    os.mkfifo(pipe)
    payload = msgspec.msgpack.encode([(path, b"x" * 16)])
    outcome = ask(hosts, Share(9, "d", ("",)), payload)
    assert outcome.error
    os.unlink(pipe)
    assert project.sync(hosts).ok


def test_orders_that_make_no_sense_are_answered(project: Project, hosts: HostMesh) -> None:
    assert project.sync(hosts).ok
    outcome = ask(hosts, Share(9, "d", ("",)), b"\xc1")
    assert "it failed there" in outcome.error
    ask(hosts, TakeBack(1 << 62), b"")
    assert project.sync(hosts).ok
