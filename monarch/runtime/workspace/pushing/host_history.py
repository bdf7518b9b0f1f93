"""Earlier generations that the hosts remember, and their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from monarch.errors import MonarchError
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.message import Sync, SyncAnswer
from monarch_sync import messages
from monarch_sync.content.digest import digest_bytes
from monarch_sync.errors import ContentGone, GenerationUnknown, VersionMismatch
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.manifest import EntryChange, Manifest

_PIECE_BYTES = 8 << 20


class HeldState(msgspec.Struct, frozen=True):
    """A generation that some hosts remember. ``missing``: the digests of its contents that none of
    these hosts has.
    """

    generation: int
    manifest: Manifest
    missing: frozenset[bytes]


class HeldChanges(msgspec.Struct, frozen=True):
    """The changes between two generations. ``digest`` is that of the later one, and ``age_seconds``
    says how long ago it was pushed.
    """

    digest: bytes
    age_seconds: float
    changes: list[EntryChange]

    @classmethod
    def of(cls, reply: messages.Changes) -> HeldChanges:
        """Return the changes in a host's answer. Raises ``BadManifest`` if an entry in it is
        invalid."""
        old, new = (
            {entry.path: entry for entry in map(Entry.from_row, rows)}
            for rows in (reply.before, reply.now)
        )
        paths = sorted(old.keys() | new.keys())
        changes = [EntryChange(path, old.get(path), new.get(path)) for path in paths]
        return cls(reply.digest, reply.age_seconds, changes)


class HostHistory:
    """The present and past states of the hosts of an allocation, by name. Calls block; a host that
    has not answered within ``patience`` seconds counts as silent."""

    def __init__(
        self, node: Node, hosts: Mapping[str, ProcAddress], patience: float | None = None
    ) -> None:
        self._node = node
        self._patience = patience
        self.hosts = hosts

    def histories(self, limit: int) -> dict[str, messages.HistoryReply]:
        """Return the generations that each host remembers, newest first, by host.

        Hosts that do not answer are left out.
        """
        answers = self._ask_all(messages.AskHistory(limit))
        return {
            host: reply
            for host, reply in answers.items()
            if isinstance(reply, messages.HistoryReply)
        }

    def states(self) -> dict[str, messages.StateReply]:
        """Return the present state of each host, by host. Hosts that do not answer are left out."""
        answers = self._ask_all(messages.AskState(0))
        return {
            host: reply for host, reply in answers.items() if isinstance(reply, messages.StateReply)
        }

    def state(self, generation: int) -> HeldState:
        """Return a generation; 0 is the present one.

        Raises ``GenerationUnknown`` if no host remembers it.
        """
        answers = self._ask_all(messages.AskState(generation))
        held = [reply for reply in answers.values() if isinstance(reply, messages.StateReply)]
        if not held:
            reasons = {r.reason for r in answers.values() if isinstance(r, messages.Refused)}
            raise GenerationUnknown(generation, "; ".join(sorted(reasons)))
        # Two authors can have given a number to different states: the state most hosts had.
        digests = [state.digest for state in held]
        digest = max(digests, key=digests.count)
        same = [state for state in held if state.digest == digest]
        missing = frozenset.intersection(*(frozenset(state.missing) for state in same))
        manifest = Manifest.from_rows(same[0].rows, same[0].digest_name)
        return HeldState(same[0].generation, manifest, missing)

    def changes(self, since: int, generation: int) -> HeldChanges:
        """Return the changes from generation ``since`` to another, from any host that remembers
        both.

        Raises ``GenerationUnknown`` if no host does.
        """
        reasons: set[str] = set()
        for host in self.hosts:
            try:
                reply = self._reply(host, self._ask(host, messages.AskChanges(since, generation)))
            except MonarchError as error:
                reasons.add(str(error))
                continue
            if isinstance(reply, messages.Changes):
                return HeldChanges.of(reply)
            reasons.add(
                reply.reason if isinstance(reply, messages.Refused) else type(reply).__name__
            )
        raise GenerationUnknown(generation, "; ".join(sorted(reasons)))

    def missing(self, host: str, digests: Sequence[bytes]) -> frozenset[bytes]:
        """Return which of the contents with these digests a host does not have."""
        reply = self._reply(host, self._ask(host, messages.AskMissing(list(digests))))
        return frozenset(reply.digests if isinstance(reply, messages.Need) else digests)

    def content(self, entry: Entry) -> bytes:
        """Return a file's content, from any host that has it.

        Raises ``ContentGone`` if no host has it any more.
        """
        for host in self.hosts:
            content = self._content_at(host, entry)
            if content is not None and digest_bytes(content) == entry.digest:
                return content
        raise ContentGone(entry.path, len(self.hosts))

    def _content_at(self, host: str, entry: Entry) -> bytes | None:
        parts: list[bytes] = []
        at = 0
        while at < entry.size or not parts:
            question = messages.AskContent(entry.digest, at, _PIECE_BYTES)
            reply = self._reply(host, self._ask(host, question))
            if not isinstance(reply, messages.Piece):
                return None
            parts.append(reply.data)
            at += len(reply.data)
            if not reply.data:
                break
        return b"".join(parts)

    def _ask(self, host: str, question: messages.Question) -> Promise[Response[SyncAnswer]]:
        return self._node.ask(self.hosts[host], Sync(), messages.encode(question))

    def _ask_all(self, question: messages.Question) -> dict[str, messages.Message]:
        asked = {host: self._ask(host, question) for host in self.hosts}
        return {host: self._reply(host, answer) for host, answer in asked.items()}

    def _reply(self, host: str, answer: Promise[Response[SyncAnswer]]) -> messages.Message:
        if not answer.wait(self._patience):
            raise MonarchError(f"host {host} has not answered for {self._patience:g} s")
        if answer.value.error:
            raise MonarchError(f"host {host} did not answer: {answer.value.error}")
        try:
            return messages.decode(answer.value.answer.reply)
        except VersionMismatch as error:
            raise MonarchError(f"host {host}: {error}") from None
