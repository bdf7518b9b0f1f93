"""The checkpoints of a run, as a recipe has them saved and tells of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from monarch.errors import ActorError, MonarchError
from monarch.runs.record.record import Record
from monarch.runs.recover.ranks import RunFailed
from monarch.runs.recover.restarts import Restarts


class UnsavableState(MonarchError):
    """A state holds what a checkpoint cannot give back, under ``key``."""

    no_edit_helps = True  # What is in the state stays there, whichever code made it.

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} is {self.reason}" if self.key else self.reason


class Saving:
    """``latest`` is the last checkpoint that is good, if there is one; ``saved_step`` the step of
    the last that was saved, here or before. ``is_overdue``: the state could not be saved when it
    was due, and may be by now, as where the next step replaces what is in it."""

    def __init__(self, record: Record, restarts: Restarts, saved_step: int | None = None) -> None:
        self.latest: Path | None = None
        self.saved_step = saved_step
        self.is_overdue = False
        self._record = record
        self._restarts = restarts
        self._unsaved = ""  # why, as it was told

    def resumed(
        self, path: Path | None, step: int, skipped: Sequence[str], *, is_from_memory: bool = False
    ) -> None:
        """Where the run goes on: ``is_from_memory``, from copies in the memory of its hosts, else
        from the checkpoint at ``path``. ``skipped`` says of newer ones what is wrong with them.

        Where that is before the last that this run has saved, as when that was on the disk of a
        host that is lost, it is told."""
        if is_from_memory:
            self._restarts.progressed_to(step)
            text = f"goes on from step {step}, from the host's memory"
            self._record.event("resumed", text, step=step)
            return
        for text in skipped:
            self._record.event("skipped", text)
        lost = self.saved_step
        if lost is not None and step < lost:
            self.saved_step = step
            place = "the beginning" if path is None else shown(path)
            text = f"no host that is left has the checkpoint after step {lost}"
            self._record.event("skipped", f"{text}: going on from {place}", step=step)
        if path is not None:
            self.latest = shown(path)
            text = f"resumed from {self.latest}, after step {step}"
            self._record.event("resumed", text, step=step)

    def save(self, step: int, write: Callable[[], Path], *, must: bool = False) -> None:
        """Have ``write`` save a checkpoint; it raises the ActorError of a rank that cannot.

        An error of the operating system, as where the disk is full, and state that cannot be saved
        become an event, and training goes on; or RunFailed, where the run ``must`` not end without
        it.
        """
        try:
            self.saved(step, write())
        except ActorError as error:
            self._failed(step, error, must=must)

    def save_best(self, step: int, write: Callable[[], Path]) -> None:
        """Have ``write`` keep the best checkpoint beside the others; a disk that is full ends
        nothing, as in `save`."""
        try:
            path = write()
        except ActorError as error:
            self._failed(step, error)
        else:
            self._record.event("best", f"the best so far: {shown(path)}", step=step, path=str(path))

    def saved(self, step: int, path: Path) -> None:
        """There is a checkpoint."""
        self.latest, self.saved_step = shown(path), step
        self.is_overdue, self._unsaved = False, ""
        self._restarts.progressed()
        self._record.event("saved", f"saved {self.latest}", step=step, path=str(path))

    def _failed(self, step: int, error: ActorError, *, must: bool = False) -> None:
        why = error.exception
        if isinstance(why, UnsavableState):
            self.is_overdue = True
        elif not isinstance(why, OSError):
            raise error
        self.failed(step, why, must=must)

    def failed(self, step: int, why: object, *, must: bool = False) -> None:
        """There is none, as `save` has it. Where it is tried in each step, it is told once."""
        kept = f"the last good one is {self.latest}" if self.latest else "there is none yet"
        text = f"could not save a checkpoint after step {step}: {why}; {kept}"
        if must:
            raise RunFailed(text)
        if not self.is_overdue or str(why) != self._unsaved:
            self._record.event("unsaved", text, step=step)
        self._unsaved = str(why)


def shown(path: Path) -> Path:
    """The path relative to this folder, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
