"""Reports a run's checkpoints, and handles errors when one cannot be saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from monarch.errors import ActorError, MonarchError
from monarch.runs.record.record import Record
from monarch.runs.recover.ranks import RunFailed
from monarch.runs.recover.restarts import Restarts


class UnsavableState(MonarchError):
    """A state has a value, under ``key``, that a checkpoint cannot restore."""

    no_edit_helps = True  # The value stays in the state, whichever code made it.

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} is {self.reason}" if self.key else self.reason


class Saving:
    """The state of a run's checkpoints.

    ``latest`` is the last good checkpoint, or None. ``saved_step`` is the step of the checkpoint
    that was saved last, in this attempt or an earlier one. ``is_overdue``: the state could not be
    saved when it was due, because a value in it cannot be saved. The next step may have replaced
    that value, so saving is tried again.
    """

    def __init__(self, record: Record, restarts: Restarts, saved_step: int | None = None) -> None:
        self.latest: Path | None = None
        self.saved_step = saved_step
        self.is_overdue = False
        self._record = record
        self._restarts = restarts
        #: The last reported reason why a checkpoint could not be saved.
        self._unsaved_reason = ""

    def resumed(
        self, path: Path | None, step: int, skipped: Sequence[str], *, is_from_memory: bool = False
    ) -> None:
        """Report where the run continues: from its hosts' memory, or from the checkpoint ``path``.

        ``skipped`` says what is wrong with newer checkpoints. If the run continues before its last
        saved checkpoint, for example because a host was lost with its disk, this is reported, too.
        """
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
            origin = "the beginning" if path is None else shown(path)
            text = f"no host that is left has the checkpoint after step {lost}"
            self._record.event("skipped", f"{text}: going on from {origin}", step=step)
        if path is not None:
            self.latest = shown(path)
            text = f"resumed from {self.latest}, after step {step}"
            self._record.event("resumed", text, step=step)

    def save(self, step: int, write: Callable[[], Path], *, must: bool = False) -> None:
        """Call ``write`` to save a checkpoint, and report it. ``write`` raises the ActorError of a
        rank that cannot save.

        If the cause is an error of the operating system, such as a full disk, or state that cannot
        be saved, it becomes an event and training continues; or RunFailed, if the checkpoint
        ``must`` be saved.
        """
        try:
            self.saved(step, write())
        except ActorError as error:
            self._failed(step, error, must=must)

    def save_best(self, step: int, write: Callable[[], Path]) -> None:
        """Call ``write`` to keep the best checkpoint beside the others; errors are handled as in
        `save`."""
        try:
            path = write()
        except ActorError as error:
            self._failed(step, error)
        else:
            self._record.event("best", f"the best so far: {shown(path)}", step=step, path=str(path))

    def saved(self, step: int, path: Path) -> None:
        """Report that a checkpoint was saved."""
        self.latest, self.saved_step = shown(path), step
        self.is_overdue, self._unsaved_reason = False, ""
        self._restarts.progressed()
        self._record.event("saved", f"saved {self.latest}", step=step, path=str(path))

    def _failed(self, step: int, error: ActorError, *, must: bool = False) -> None:
        cause = error.exception
        if isinstance(cause, UnsavableState):
            self.is_overdue = True
        elif not isinstance(cause, OSError):
            raise error
        self.failed(step, cause, must=must)

    def failed(self, step: int, why: object, *, must: bool = False) -> None:
        """Report that a checkpoint could not be saved; with ``must``, raise RunFailed.

        If each step tries again and fails for the same reason, only the first failure is reported.
        """
        latest = f"the last good one is {self.latest}" if self.latest else "there is none yet"
        text = f"could not save a checkpoint after step {step}: {why}; {latest}"
        if must:
            raise RunFailed(text)
        if not self.is_overdue or str(why) != self._unsaved_reason:
            self._record.event("unsaved", text, step=step)
        self._unsaved_reason = str(why)


def shown(path: Path) -> Path:
    """Return the path relative to the current folder, if it is below that."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path
