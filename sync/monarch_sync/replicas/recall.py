"""A replica's answers to questions about what it has and had. Nothing is changed by them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from monarch_sync.entry import to_wire
from monarch_sync.history import Past
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
    ToldGeneration,
)

__all__ = ["answer"]

_MAX_PIECE_BYTES = 8 << 20


class _Remembering(Protocol):
    """What is asked: a `Replica`."""

    @property
    def generation(self) -> int: ...

    @property
    def manifest(self) -> Manifest: ...

    def past(self) -> Iterator[Past]: ...

    def missing(self, digests: Sequence[bytes]) -> list[bytes]: ...

    def find(self, digest: bytes) -> str | None: ...


def answer(replica: _Remembering, question: Question) -> Message:
    """The answer to a question. Raises ``OSError`` where the disk fails."""
    if isinstance(question, AskHistory):
        return _history(replica, question.limit)
    if isinstance(question, AskState):
        return _state(replica, question.generation)
    if isinstance(question, AskMissing):
        return Need(replica.missing(question.digests))
    return _piece(replica, question)


def _history(replica: _Remembering, limit: int) -> Told:
    now = time.time()
    told: list[ToldGeneration] = []
    for past in replica.past():
        if len(told) >= limit:
            break
        told.append(
            ToldGeneration(
                past.generation,
                max(0.0, now - past.seconds),
                past.author,
                past.digest,
                past.num_files,
                past.num_changed,
                [to_wire(path) for path in past.paths],
                past.is_whole,
                past.is_taken_back,
            )
        )
    return Told(replica.generation, replica.manifest.digest, told)


def _state(replica: _Remembering, generation: int) -> Message:
    if generation in (0, replica.generation):
        now = replica.manifest
        return Held(replica.generation, now.digest_name, now.digest, now.rows(), [])
    found = _find(replica, generation)
    if found is None:
        return Refused("unknown", f"generation {generation} is not remembered here")
    manifest = found.manifest
    if manifest is None:
        return Refused("unknown", f"what was in generation {generation} is not remembered any more")
    return Held(
        generation, manifest.digest_name, manifest.digest, manifest.rows(), sorted(found.missing)
    )


def _find(replica: _Remembering, generation: int) -> Past | None:
    for past in replica.past():
        if past.generation == generation:
            return past
    return None


def _piece(replica: _Remembering, question: AskContent) -> Message:
    path = replica.find(question.digest)
    if path is None:
        return Refused("gone", "this content is not here any more")
    with open(path, "rb", buffering=0) as file:
        size = max(0, min(question.size, _MAX_PIECE_BYTES))
        offset = min(max(0, question.offset), os.fstat(file.fileno()).st_size)
        return Piece(os.pread(file.fileno(), size, offset))
