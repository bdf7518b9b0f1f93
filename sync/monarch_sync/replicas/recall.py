"""A replica's answers to questions about its present and earlier states. They change nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from monarch_sync.history import History, PastGeneration
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
from monarch_sync.replicas.on_disk import OnDisk
from monarch_sync.replicas.state_log import StateLog
from monarch_sync.tree.entry import to_wire
from monarch_sync.tree.manifest import Manifest

_MAX_PIECE_BYTES = 8 << 20


class Recall:
    """Answers questions about the states that one replica has had, and about contents of these
    states that the host still has.
    """

    def __init__(self, log: StateLog, history: History, on_disk: OnDisk) -> None:
        self._log = log
        self._history = history
        self._on_disk = on_disk

    def past(self) -> Iterator[PastGeneration]:
        """Yield the generations that this replica remembers, the present one first."""
        return self._history.walk(self._log.state.manifest, self._on_disk.store.has)

    def answer(self, question: Question) -> Message:
        """Return the answer to a question. Raises ``OSError`` if the disk fails."""
        if isinstance(question, AskHistory):
            return self._answer_history(question.limit)
        if isinstance(question, AskState):
            return self._answer_state(question.generation)
        if isinstance(question, AskMissing):
            return self._answer_missing(question.digests)
        if isinstance(question, AskChanges):
            return self._answer_changes(question.since, question.generation)
        return self._answer_content(question)

    def _answer_history(self, limit: int) -> HistoryReply:
        now = time.time()
        generations: list[ToldGeneration] = []
        for past in self.past():
            if len(generations) >= limit:
                break
            generations.append(
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
        state = self._log.state
        return HistoryReply(state.generation, state.manifest.digest, generations)

    def _answer_state(self, generation: int) -> Message:
        present = self._log.state
        if generation in (0, present.generation):
            manifest, generation, missing = present.manifest, present.generation, []
        else:
            remembered = self._find_generation(generation)
            if isinstance(remembered, Refused):
                return remembered
            past, manifest = remembered
            missing = sorted(past.missing)
        rows = manifest.rows()
        return StateReply(generation, manifest.digest_name, manifest.digest, rows, missing)

    def _answer_missing(self, digests: Sequence[bytes]) -> Need:
        """Return a ``Need`` with those of the ``digests`` that are neither in the present state nor
        in the store. No file is read for this.
        """
        shown, is_stored = self._log.state.manifest.paths_of(digests), self._on_disk.store.has
        return Need([digest for digest in digests if digest not in shown and not is_stored(digest)])

    def _answer_changes(self, since: int, until: int) -> Message:
        old, new = self._find_generation(since), self._find_generation(until)
        if isinstance(old, Refused):
            return old
        if isinstance(new, Refused):
            return new
        past, manifest = new
        changes = manifest.changes(old[1])
        return Changes(
            generation=until,
            digest=past.digest,
            age_seconds=max(0.0, time.time() - past.seconds),
            before=[change.before.to_row() for change in changes if change.before is not None],
            now=[change.now.to_row() for change in changes if change.now is not None],
        )

    def _find_generation(self, generation: int) -> tuple[PastGeneration, Manifest] | Refused:
        for past in self.past():
            if past.generation == generation:
                if past.manifest is not None:
                    return past, past.manifest
                reason = f"what was in generation {generation} is not remembered any more"
                return Refused("unknown", reason)
        return Refused("unknown", f"generation {generation} is not remembered here")

    def _answer_content(self, question: AskContent) -> Message:
        if question.offset < 0 or question.size < 0:
            reason = f"no {question.size} bytes begin at {question.offset}"
            return Refused("bad-question", reason)
        path = self._log.state.manifest.path_of(question.digest)
        file_with_content = self._on_disk.find(question.digest, path)
        if file_with_content is None:
            return Refused("gone", "this content is not here any more")
        with open(file_with_content[0], "rb", buffering=0) as file:
            size = min(question.size, _MAX_PIECE_BYTES)
            offset = min(question.offset, os.fstat(file.fileno()).st_size)
            return Piece(os.pread(file.fileno(), size, offset))
