"""A replica's answers to questions about its present and earlier states. They change nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from monarch_sync.history import PastGeneration
from monarch_sync.messages import (
    AskChanges,
    AskContent,
    AskHistory,
    AskMissing,
    AskState,
    Changes,
    HistoryReply,
    Message,
    Need,
    Piece,
    Question,
    Refused,
    StateReply,
    ToldGeneration,
)
from monarch_sync.tree.entry import to_wire
from monarch_sync.tree.manifest import Manifest

_MAX_PIECE_BYTES = 8 << 20


class _Remembering(Protocol):
    """What these answers need of a `Replica`."""

    @property
    def generation(self) -> int: ...

    @property
    def manifest(self) -> Manifest: ...

    def past(self) -> Iterator[PastGeneration]: ...

    def missing(self, digests: Sequence[bytes]) -> list[bytes]: ...

    def find(self, digest: bytes) -> str | None: ...


def answer(replica: _Remembering, question: Question) -> Message:
    """Return the answer to a question. Raises ``OSError`` if the disk fails."""
    if isinstance(question, AskHistory):
        return _history(replica, question.limit)
    if isinstance(question, AskState):
        return _state(replica, question.generation)
    if isinstance(question, AskMissing):
        return Need(replica.missing(question.digests))
    if isinstance(question, AskChanges):
        return _changes(replica, question.since, question.generation)
    return _piece(replica, question)


def _history(replica: _Remembering, limit: int) -> HistoryReply:
    now = time.time()
    told: list[ToldGeneration] = []
    for past in replica.past():
        if len(told) >= limit:
            break
        told.append(
            ToldGeneration(
                generation=past.generation,
                age_seconds=max(0.0, now - past.seconds),
                author=past.author,
                digest=past.digest,
                num_files=past.num_files,
                num_changed=past.num_changed,
                paths=[to_wire(path) for path in past.paths],
                is_whole=past.is_whole,
                is_taken_back=past.is_taken_back,
            )
        )
    return HistoryReply(replica.generation, replica.manifest.digest, told)


def _state(replica: _Remembering, generation: int) -> Message:
    if generation in (0, replica.generation):
        now = replica.manifest
        return StateReply(replica.generation, now.digest_name, now.digest, now.rows(), [])
    known = _known(replica, generation)
    if isinstance(known, Refused):
        return known
    past, manifest = known
    return StateReply(
        generation, manifest.digest_name, manifest.digest, manifest.rows(), sorted(past.missing)
    )


def _changes(replica: _Remembering, since: int, until: int) -> Message:
    before, now = _known(replica, since), _known(replica, until)
    if isinstance(before, Refused):
        return before
    if isinstance(now, Refused):
        return now
    past, manifest = now
    changes = manifest.changes(before[1])
    return Changes(
        until, past.digest, max(0.0, time.time() - past.seconds),
        [change.before.to_row() for change in changes if change.before is not None],
        [change.now.to_row() for change in changes if change.now is not None],
    )  # fmt: skip


def _known(replica: _Remembering, generation: int) -> tuple[PastGeneration, Manifest] | Refused:
    for past in replica.past():
        if past.generation == generation:
            if past.manifest is not None:
                return past, past.manifest
            reason = f"what was in generation {generation} is not remembered any more"
            return Refused("unknown", reason)
    return Refused("unknown", f"generation {generation} is not remembered here")


def _piece(replica: _Remembering, question: AskContent) -> Message:
    if question.offset < 0 or question.size < 0:
        return Refused("bad-question", f"no {question.size} bytes begin at {question.offset}")
    path = replica.find(question.digest)
    if path is None:
        return Refused("gone", "this content is not here any more")
    with open(path, "rb", buffering=0) as file:
        size = min(question.size, _MAX_PIECE_BYTES)
        offset = min(question.offset, os.fstat(file.fileno()).st_size)
        return Piece(os.pread(file.fileno(), size, offset))
