"""Earlier generations, as the hosts remember them: asked for, looked at, gone back to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from monarch.errors import MonarchError
from monarch.runtime.answers import Outcome
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.attempt import Attempt
from monarch.runtime.workspace.memory import Memory
from monarch.runtime.workspace.owner import Owner
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Sync
from monarch_sync.contents import Contents
from monarch_sync.digest import digest_bytes
from monarch_sync.disk import Content
from monarch_sync.entry import Entry
from monarch_sync.errors import ContentGone, GenerationUnknown, PushRefused, VersionMismatch
from monarch_sync.manifest import Manifest
from monarch_sync.messages import (
    AskContent,
    AskHistory,
    AskMissing,
    AskState,
    Held,
    Message,
    Need,
    Piece,
    Question,
    Refused,
    Told,
    decode,
    encode,
)
from monarch_sync.report import SyncReport
from monarch_sync.scanner import Scan, Scanner
from monarch_sync.workspace import Workspace

__all__ = ["HeldState", "Past", "roll_back"]

_PIECE_BYTES = 8 << 20


class HeldState(msgspec.Struct, frozen=True):
    """A generation, as some hosts have it; ``missing`` are contents that none of them has."""

    generation: int
    manifest: Manifest
    missing: frozenset[bytes]


class Past:
    """What the hosts of an allocation, by name, have and had. Calls block."""

    def __init__(self, node: Node, hosts: Mapping[str, ProcAddress]) -> None:
        self._node = node
        self.hosts = hosts

    def histories(self, limit: int) -> dict[str, Told]:
        """What each host tells of its generations, newest first."""
        answers = self._ask_all(AskHistory(limit))
        return {host: reply for host, reply in answers.items() if isinstance(reply, Told)}

    def states(self) -> dict[str, Held]:
        """What each host has now."""
        answers = self._ask_all(AskState(0))
        return {host: reply for host, reply in answers.items() if isinstance(reply, Held)}

    def state(self, generation: int) -> HeldState:
        """A generation, 0 for what is there now.

        Raises ``GenerationUnknown`` where no host remembers it.
        """
        answers = self._ask_all(AskState(generation))
        held = [reply for reply in answers.values() if isinstance(reply, Held)]
        if not held:
            reasons = {r.reason for r in answers.values() if isinstance(r, Refused)}
            raise GenerationUnknown(generation, "; ".join(sorted(reasons)))
        # Two authors can have given a number to different states: the state most hosts had.
        digests = [one.digest for one in held]
        digest = max(digests, key=digests.count)
        same = [one for one in held if one.digest == digest]
        missing = frozenset.intersection(*(frozenset(one.missing) for one in same))
        manifest = Manifest.from_rows(same[0].rows, same[0].digest_name)
        return HeldState(same[0].generation, manifest, missing)

    def missing(self, host: str, digests: Sequence[bytes]) -> frozenset[bytes]:
        """Which of these contents a host has not."""
        reply = self._reply(host, self._ask(host, AskMissing(list(digests))))
        return frozenset(reply.digests if isinstance(reply, Need) else digests)

    def content(self, entry: Entry) -> bytes:
        """A file's content, from whichever host has it. Raises ``ContentGone``."""
        for host in self.hosts:
            found = self._content_at(host, entry)
            if found is not None and digest_bytes(found) == entry.digest:
                return found
        raise ContentGone(entry.path, len(self.hosts))

    def _content_at(self, host: str, entry: Entry) -> bytes | None:
        parts: list[bytes] = []
        at = 0
        while at < entry.size or not parts:
            question = AskContent(entry.digest, at, _PIECE_BYTES)
            reply = self._reply(host, self._ask(host, question))
            if not isinstance(reply, Piece):
                return None
            parts.append(reply.data)
            at += len(reply.data)
            if not reply.data:
                break
        return b"".join(parts)

    def _ask(self, host: str, question: Question) -> Promise[Outcome]:
        sender = self._node.uid
        data = encode(question)
        return self._node.request(self.hosts[host], lambda port: Sync(port, sender), data)

    def _ask_all(self, question: Question) -> dict[str, Message]:
        asked = {host: self._ask(host, question) for host in self.hosts}
        return {host: self._reply(host, answer) for host, answer in asked.items()}

    def _reply(self, host: str, answer: Promise[Outcome]) -> Message:
        answer.wait()
        if answer.value.error:
            raise MonarchError(f"host {host} did not answer: {answer.value.error}")
        try:
            return decode(answer.value.body["reply"])
        except VersionMismatch as error:
            raise MonarchError(f"host {host}: {error}") from None


class _PastContents(Contents):
    """Contents that hosts have, for those that lack them."""

    def __init__(self, workspace: Workspace, past: Past) -> None:
        super().__init__(workspace)
        self._past = past

    def whole(self, entry: Entry) -> Content:
        return self._past.content(entry)


class _PastScanner(Scanner):
    """Finds what was, whatever the author's folders hold now."""

    def __init__(self, workspace: Workspace, manifest: Manifest, contents: Contents) -> None:
        super().__init__(workspace)
        self.manifest, self.contents = manifest, contents
        self._found = Scan(manifest, [])

    def scan(self) -> Scan:
        return self._found

    def rescan(self, paths: Iterable[str | Path]) -> Scan:  # type: ignore[override]
        return self._found


class _Landing(Workspace):
    """Where folders land, and none of their files: the author's own are not touched."""

    def locate(self, remote: str) -> Iterator[Path]:
        return iter(())


def roll_back(
    past: Past,
    node: Node,
    owners: Sequence[Owner],
    workspace: Workspace,
    generation: int,
    hosts: Sequence[ProcAddress],
    *,
    best_effort: bool = False,
    silent: Mapping[Uid, str] | None = None,
) -> SyncReport:
    """Have all hosts, and the processes of ``owners``, go back to a generation, or none of them.

    ``past`` is of those of ``hosts`` that answer; ``best_effort`` leaves the others behind, which
    are ``silent``, and names them. It becomes the next generation. The author's files stay as they
    are. Contents come from the hosts' stores, and from another host where one lacks them. Blocks.
    Raises ``GenerationUnknown``, ``ContentGone``, and ``MonarchError`` for a lost host.
    """
    wanted = past.state(generation)
    for entry in wanted.manifest:
        if entry.is_file and entry.digest in wanted.missing:
            raise ContentGone(entry.path, len(past.hosts), len(wanted.missing), generation)
    landing = _Landing({folder.local: folder.remote for folder in workspace.folders})
    memory = Memory(landing)
    memory.scanner = _PastScanner(landing, wanted.manifest, _PastContents(landing, past))
    memory.last = _same_state(past.states().values())
    try:
        attempt = Attempt(memory, node, owners, "auto", best_effort=best_effort, silent=silent)
        return attempt.run(hosts, None)
    except PushRefused as error:
        raise MonarchError(str(error)) from None


def _same_state(states: Iterable[Held]) -> Manifest | None:
    """The state that all hosts have, to go back to if a rank cannot switch."""
    held = list(states)
    if not held or len({one.digest for one in held}) > 1:
        return None
    return Manifest.from_rows(held[0].rows, held[0].digest_name)
