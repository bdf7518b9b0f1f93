"""The record of a run: writes down its course, and receives requests to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from monarch.actor import HostMesh, HostWarning, ProcMesh
from monarch.observe.json_rows import json_rows
from monarch.runs.record.code import RunCode
from monarch.runs.record.edits import Edits
from monarch.runs.record.error_text import in_words
from monarch.runs.record.live_config import LiveConfig
from monarch.runs.record.loggers import LoggedRun, Logger, open_loggers
from monarch.runs.record.rows import EVENTS, METRICS, RowFile
from monarch.runs.record.telemetry import TROUBLE, RunTelemetry
from monarch.runs.roles import meshes_of
from monarch.runtime.ends.process_start import seconds_since_start
from monarch_sync.words import counted, printable, some

_LOOK_SECONDS = 0.2
_MAX_DELAY_SECONDS = 600.0  # A longer delay means a wrong clock, or a file that was moved here.

C = TypeVar("C")


class Display(Protocol):
    """Shows a run to a person. Called on the client, between two steps.

    A display that does not affect the run has a true ``only_shows``: a recipe may call it while the
    next step already runs.
    """

    def message(self, text: str) -> None:
        """Show a line about an event."""

    def alarm(self, text: str) -> None:
        """Show something that a person should act on."""

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """Show the figures of a step. Steps count from 1; one step may report more than once."""

    def phase(self, text: str) -> None:
        """Show the current activity until the next metrics."""

    def saved(self, step: int) -> None:
        """Show that there is a checkpoint after this step; not as a new line, since there are
        many."""


class PressedKeys(Protocol):
    """The keys that a person presses."""

    def take(self) -> str:
        """Return the next key that was pressed; "" if none was."""


class Allocation(Protocol):
    """The hosts on which a run continues, and news of them."""

    def after_loss(self, hosts: HostMesh, *, any_number: bool = False) -> HostMesh:
        """Return the hosts to continue on, after something on ``hosts`` was lost.

        Raises ``RunFailed`` if the run cannot continue.
        """

    def repair(self, *, is_loss_known: bool = True) -> None:
        """Restart hosts that have ended, while the run holds.

        Without ``is_loss_known``, a scheduler is not asked whether its hosts have ended.
        """

    def why_gone(self) -> str:
        """Return why the allocation with which the run began has ended or was replaced; else ""."""


class Record:
    """Gives a recipe access to its run's folder: each recipe gets a record, beside its config.

    ``folder`` has ``metrics.jsonl``, ``events.jsonl`` and ``checkpoints/``. Metrics and events are
    written there, and shown by ``display``. ``procs_per_host`` is the number of procs on each host,
    for recipes that spawn their own. Any thread may use the record.
    """

    def __init__(self, folder: Path | str, display: Display, *, procs_per_host: int = 1) -> None:
        self.folder = Path(folder)
        #: The number of procs of each role; empty unless a person or the recipe gives it.
        self.roles: dict[str, int] = {}
        self.procs_per_host = procs_per_host
        self.display = display
        #: The run's config while its files may change; ``None`` for a config without a file.
        self.config_file: LiveConfig[Any] | None = None
        #: The code of the run; ``None`` without a workspace.
        self.code: RunCode | None = None
        #: The hosts' allocation; ``None`` if the run has hosts of its own.
        self.allocation: Allocation | None = None
        #: Stores the records of processes; ``None`` outside of a session.
        self.telemetry: RunTelemetry | None = None
        self.edits = Edits()
        #: Opens a block in which keys at the run's own terminal are read; ``None`` without one.
        self.listen_to_keys: Callable[[], AbstractContextManager[PressedKeys]] | None = None
        #: The config that the recipe got last.
        self._config: Any = None
        #: The generation of the last metrics.
        self._generation: float | None = None
        self._stop = threading.Event()
        self._is_save_wanted = False
        self._metrics = RowFile(self.folder / METRICS)
        self._events = RowFile(self.folder / EVENTS)
        #: Files that cannot be written, with the reported reasons.
        self._unwritten: dict[RowFile, str] = {}
        self._loggers: list[Logger] = []
        #: The steps of the last metrics and of the last checkpoint.
        self._newest_step = self._saved_step = 0
        #: Whether the run has held since the last change of the generation.
        self._has_held = False
        #: Old code that is kept by design, from the last audit.
        self._kept_code: list[str] = []
        #: The newest step of each metric; ``None`` before the file of metrics was read.
        self._newest_steps: dict[str, int] | None = None
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)

    def meshes_of(self, procs: ProcMesh, **roles: int) -> dict[str, ProcMesh]:
        """Return a part of the mesh for each role of the run, by default for each of ``roles``.

        Raises ``JobError`` if there are too few procs.
        """
        return meshes_of(procs, self.roles or roles)

    @property
    def checkpoint_dir(self) -> Path:
        """Return the folder for the recipe's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def is_stopping(self) -> bool:
        """Whether the recipe should save a checkpoint and return; check it between two steps."""
        return self._stop.is_set()

    @property
    def can_save(self) -> bool:
        """Whether there is a state to save. After a loss of ranks, a run that holds has none."""
        return self.edits.held_since is None or self.edits.in_place

    @property
    def may_go_ahead(self) -> bool:
        """Whether the next step may begin before the figures of the last step are shown. It may, if
        no display affects the run.
        """
        return getattr(self.display, "only_shows", False)

    def stop(self) -> None:
        """Ask the recipe to save and return."""
        self._stop.set()

    @property
    def is_save_wanted(self) -> bool:
        """Whether the recipe should save a checkpoint and then continue, because hosts are about to
        end.

        It stays true until `take_save_wanted` is called. Check it between two steps.
        """
        return self._is_save_wanted

    def take_save_wanted(self) -> bool:
        """Return ``is_save_wanted``, and reset it."""
        is_save_wanted, self._is_save_wanted = self._is_save_wanted, False
        return is_save_wanted

    def warned(self, warning: HostWarning) -> None:
        """Record that a host is about to end, and ask for a checkpoint. Any thread may call it."""
        data = {"host": warning.host, "why": warning.why, "seconds": warning.seconds}
        self.event("warned", f"{warning}; saving", **data)
        self._is_save_wanted = True

    def wait_until_stopping(self, seconds: float) -> bool:
        """Wait for ``seconds``, or until the recipe should stop; return whether it should."""
        # Not in the event's own wait: a signal's handler that sets it there would wait for us.
        deadline = time.monotonic() + seconds
        while not self.is_stopping and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, _LOOK_SECONDS))
        return self.is_stopping

    def hosts_after_loss(self, hosts: HostMesh, *, any_number: bool = False) -> HostMesh:
        """Return the hosts to continue on, after something on ``hosts`` was lost: mostly the same.

        There may be fewer, if the recipe's ``check`` accepts that, or with ``any_number`` also if
        it does not. Raises ``RunFailed`` if there are none any more.
        """
        if self.allocation is None:
            return hosts
        return self.allocation.after_loss(hosts, any_number=any_number)

    def repair_hosts(self, *, is_loss_known: bool = True) -> None:
        """Restart hosts that have ended while the run holds, so that a fix can be pushed to them.

        Does nothing without an allocation, or if the allocation cannot restart hosts. Without
        ``is_loss_known``, a scheduler is not asked whether its hosts have ended.
        """
        if self.allocation is not None:
            self.allocation.repair(is_loss_known=is_loss_known)

    def why_gone(self) -> str:
        """Return why the allocation with which the run began has ended or was replaced; else ""."""
        return "" if self.allocation is None else self.allocation.why_gone()

    def message(self, text: str) -> None:
        """Show a line about an event."""
        self._show(self.display.message, text)

    def alarm(self, text: str) -> None:
        """Show something that a person should act on."""
        self._show(self.display.alarm, text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """Record and show the figures of a step. Steps count from 1.

        One step may report more than once. If the figures have a ``generation``, a change of it
        becomes an event, with the diff of the code. Report the generation of the rank that is
        furthest behind.

        Metrics of a step that was reported before, as when a run was resumed from an earlier
        checkpoint, are written with ``"again": true``; a reader that leaves out these rows has each
        step once.
        """
        now = time.time()
        self._newest_step = step
        row = {"step": step, "num_steps": num_steps, "time": now, **values}
        if self._is_made_again(step, values):
            row["again"] = True
        self._add(self._metrics, row)
        self._log(step, values)
        self._look_at_generation(step, values, now)
        self._show(self.display.metrics, step, num_steps, values)

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Record and show an event of the run: a death, a heal, new code.

        ``kind`` is one word (``died``, ``respawned``, ``healed``, ``saved``, ``resumed``,
        ``generation``, ``config``, ``chaos``); ``data`` are JSON values.
        """
        if kind == "saved" and (path := data.get("path")) and not Path(path).exists():
            data["elsewhere"] = True  # on the disk of the host that wrote it
        self.note(kind, text, **data)
        if kind == "saved" and isinstance(step := data.get("step"), int):
            self._saved_step = step
            self._show(self.display.saved, step)
        else:
            self.message(text)

    def phase(self, text: str) -> None:
        """Show an activity that takes a while, until the next metrics; on a terminal only."""
        self._show(self.display.phase, text)

    def note(self, kind: str, text: str, **data: Any) -> None:
        """Record an event without showing it."""
        self._has_held |= kind == "held"
        self._add(self._events, {"time": time.time(), "kind": kind, "text": text, **data})
        if kind in TROUBLE and self.telemetry is not None:
            self.telemetry.write_soon()

    def live(self, config: C) -> C:
        """Return ``config`` with the later changes in its file that may be made while it runs.

        Call it between two steps. A change, or a key that needs a restart, becomes an event.
        """
        self._config = config
        if self.config_file is None:
            return config
        change = self.config_file.poll()
        if change is not None:
            self.event("config", change.text, **change.data())
        current: C = self.config_file.config
        self._config = current
        return current

    @property
    def edit_patience_seconds(self) -> float | None:
        """Return the config's ``edit_patience_seconds``, as it is now; ``None`` if it has no such
        key.
        """
        config = self.live(self._config)
        for section in (config, getattr(config, "fault_tolerance", None)):
            seconds = getattr(section, "edit_patience_seconds", None)
            if seconds is not None:
                return float(seconds)
        return None

    def log_to(self, names: Sequence[str], run: LoggedRun | None = None) -> None:
        """Send metrics to these loggers too (``tensorboard``, ``wandb``, ``mlflow``), until
        `close`.

        Raises ConfigError if a library is not installed.
        """
        self._loggers = open_loggers(names, run or LoggedRun(self.folder))
        for logger in self._loggers:
            self._show(self.display.message, f"metrics also go to {logger.place}")

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Send figures to the loggers; drop a logger that fails, for example without its server."""
        for logger in list(self._loggers):
            try:
                logger.metrics(step, values)
            except Exception as error:
                self._loggers.remove(logger)
                name = type(logger).__name__
                self.event("unlogged", f"{name} gets no more metrics: {in_words(error)}", step=step)

    def close(self) -> None:
        """End the loggers."""
        loggers, self._loggers = self._loggers, []
        for logger in loggers:
            try:
                logger.close()
            except Exception as error:  # The run has its own files.
                self.note("unlogged", f"{type(logger).__name__} could not end: {in_words(error)}")

    def _is_made_again(self, step: int, values: Mapping[str, float]) -> bool:
        if self._newest_steps is None:
            self._newest_steps = {}
            path = self._metrics.path
            for row in json_rows(path) if path.is_file() else ():
                self._note_step(row.get("step", 0), row)
        is_again = any(self._newest_steps.get(name, 0) >= step for name in values)
        self._note_step(step, values)
        return is_again

    def _note_step(self, step: int, names: Iterable[str]) -> None:
        assert self._newest_steps is not None
        for name in names:
            self._newest_steps[name] = max(self._newest_steps.get(name, 0), step)

    def _look_at_generation(self, step: int, values: Mapping[str, float], now: float) -> None:
        generation = values.get("generation")
        if generation is None or generation == self._generation:
            return
        last, self._generation = self._generation, generation
        if last is None:
            seconds = seconds_since_start()
            self.note("first_step", f"first step after {seconds:.1f} s", seconds=seconds, step=step)
            if self.code is not None and generation > self.code.generation:
                self.code.move_to(int(generation))  # There was a push while it began.
            return
        if self.code is not None and not self.code.is_loaded_since(last):
            return  # No process has loaded the changed code.
        text = f"generation {generation:.0f} from step {step}"
        change = self.code.move_to(int(generation)) if self.code is not None else None
        if change is None:
            self.event("generation", text, generation=generation, step=step)
            return
        data: dict[str, Any] = {
            "files": change.files,
            "diff": change.diff,
            "digest": change.digest,
        }
        text += f": {some([printable(file) for file in change.files])}"
        seconds = max(0.0, now - change.saved_at)
        has_held, self._has_held = self._has_held, False
        # After a hold, the time would include the person's thinking.
        if seconds < _MAX_DELAY_SECONDS and not has_held:
            text += f", {seconds * 1000:.0f} ms after the save"
            data["save_to_step_seconds"] = seconds
        self.event("generation", text, generation=generation, step=step, **data)

    def replacing(self, generation: int, num_procs: int) -> None:
        """Report that a push is about to replace processes, and how many steps are lost by that."""
        saved, newest = self._saved_step, self._newest_step
        costs = "nothing was saved yet, and what was learned is lost"
        if saved:
            made_again = f", and {counted(newest - saved, 'step')} since then are made again"
            costs = f"the last checkpoint is of step {saved}{made_again if newest > saved else ''}"
        processes = "a new process" if num_procs == 1 else f"{num_procs:,} new processes"
        text = f"generation {generation} needs {processes}: {costs}"
        self.event("replacing", text, generation=generation, step=newest, saved=saved)

    def audited(
        self, generation: int, stale: Sequence[str], kept: Sequence[str], *, is_told: bool = True
    ) -> None:
        """Record what still runs old code after a switch, if anything does. Any thread may call it.

        With ``is_told`` it is shown, too. If there is only ``kept``, code that is kept by design,
        it is shown when it has changed since the last call.
        """
        if stale or kept:
            parts = [*(f"old code: {text}" for text in stale), *(f"kept: {text}" for text in kept)]
            text = f"generation {generation}: {'; '.join(map(printable, parts))}"
            self.note("audit", text, generation=generation, stale=list(stale), kept=list(kept))
            if is_told and (stale or list(kept) != self._kept_code):
                self.message(text)
        self._kept_code = list(kept)

    def _show(self, show: Callable[..., None], *args: Any) -> None:
        """Call a method of a display. If the display cannot show anything, as without a terminal,
        go on.

        If the reader of a pipe is gone (``| head``), ask the run to save and stop.
        """
        try:
            show(*args)
        except BrokenPipeError:
            self.stop()
        except OSError:
            pass

    def _add(self, file: RowFile, row: Mapping[str, Any]) -> None:
        """Add a row to a file; an error, such as a full disk, is shown once, and the run
        continues."""
        try:
            file.add(row)
        except OSError as error:
            reason = error.strerror or str(error)
            if self._unwritten.get(file) != reason:
                self.message(f"cannot write {file.path}: {reason}; the run goes on without")
            self._unwritten[file] = reason
        else:
            self._unwritten.pop(file, None)


class LineDisplay:
    """Writes one line for every message, and for the metrics of every ``log_every``-th step."""

    def __init__(self, stream: TextIO, log_every: int = 10) -> None:
        self.stream = stream
        self.log_every = log_every

    def message(self, text: str) -> None:
        """Write ``text`` as a line."""
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def phase(self, text: str) -> None:
        """Do nothing: a written line could not be removed when the phase ends."""

    def saved(self, step: int) -> None:
        """Write the step of the checkpoint."""
        self.message(f"saved step {step}")

    def alarm(self, text: str) -> None:
        """Write ``text`` as a line, like any other message."""
        self.message(text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """Write ``values``, at every ``log_every``-th step and the last."""
        if step % self.log_every == 0 or step == num_steps:
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.message(f"step {step}/{num_steps}  {numbers}")
