"""One session of a run, from ``begun`` to ``ended``: a program that runs a recipe in a run's
folder."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from monarch.config_file import LoadedConfig, load_config, to_toml
from monarch.config_file.keys import leaves
from monarch.errors import JobError
from monarch.observe.query import TELEMETRY
from monarch.runs.detached import note_detached
from monarch.runs.page.report import write_report
from monarch.runs.record.code import RunCode
from monarch.runs.record.error_text import in_words
from monarch.runs.record.folder import RunFolder, writing_in
from monarch.runs.record.git import commit_here
from monarch.runs.record.live_config import LiveConfig
from monarch.runs.record.loggers import LoggedRun
from monarch.runs.record.record import Display, Record
from monarch.runs.record.telemetry import RunTelemetry
from monarch.runs.recover.ranks import RunLost
from monarch.runtime.ends.process_start import process_start
from monarch.runtime.procs.keeps_all import keeping_all
from monarch.runtime.uninterrupted import Uninterrupted
from monarch.version import __version__


class RunLock:
    """A lock on a run's folder, until it is closed, or the program ends, however it ends.

    Two programs in one folder would overwrite each other's checkpoints. Raises ``JobError`` if
    another program has it. A file system without locks lets every program have it.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        with Uninterrupted():  # Ctrl-C just after it was opened would leave it open.
            self._file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JobError(
                f"{folder} is being run by another program; --new begins another run"
            ) from None
        except OSError:
            pass

    def close(self) -> None:
        """Release the lock."""
        with Uninterrupted():  # Ctrl-C just before the close would leave it open.
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)  # Ctrl-C came before its maker could keep it.


@dataclass
class RunSession:
    """A ``with`` block around a run: it records at the beginning what is run, and then how it
    ended.

    ``record`` is for the recipe. If an exception leaves the block, the run ended as "stopped"
    (``KeyboardInterrupt``) or "failed". Entering the block raises ``JobError`` while another
    program runs in the folder.
    """

    folder: RunFolder
    display: Display
    loaded: LoadedConfig[Any]
    command: Sequence[str]
    config_file: Path | None = None
    overrides: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    procs_per_host: int = 1
    roles: Mapping[str, int] = field(default_factory=dict)
    code: RunCode | None = None
    generation: int = 0
    outcome: Any = None

    def __post_init__(self) -> None:
        with writing_in(self.folder.path):
            self.record = Record(self.folder.path, self.display, procs_per_host=self.procs_per_host)
            self.record.roles = dict(self.roles)

    def __enter__(self) -> RunSession:
        with writing_in(self.folder.path):
            self._lock = RunLock(self.folder.path)
            try:
                self._begin()
            except BaseException:
                self._lock.close()
                raise
        self._keeping = keeping_all()
        self._keeping.__enter__()
        self.record.telemetry = RunTelemetry(self.folder.path)
        self.record.telemetry.begin()
        self.record.code = self.code
        self.record.edits.begin(self.generation)
        self.record.config_file = self._live_config()
        pid = os.getpid()
        self.record.note(
            "begun",
            "begun",
            pid=pid,
            started=process_start(pid),
            generation=self.generation,
            digest=self.code.digest if self.code else "",
        )
        return self

    def _begin(self) -> None:
        folder = self.folder
        self._write_config(self.loaded.config)
        folder.write_json(
            "origin.json", {key: origin.text for key, origin in self.loaded.origins.items()}
        )
        folder.write_json("env.json", self._surroundings())
        folder.note_command(self.command)
        note_detached(folder)
        folder.link_as_latest()
        config = self.loaded.config
        extras = getattr(config, "extras", None)
        run = LoggedRun(
            folder.path,
            {key: _logged(value) for key, value in leaves(config)},
            getattr(extras, "wandb_project", None),
            getattr(extras, "wandb_entity", None),
        )
        self.record.log_to(getattr(extras, "log_to", ()), run)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            status, reason = "stopped", str(error)
        elif error is not None:
            status, reason = "failed", in_words(error)
        else:
            status, reason = "stopped" if self.record.is_stopping else "finished", ""
        is_lost = isinstance(error, RunLost)
        text = f"{status}: {reason}" if reason else status
        outcome = _plain(self.outcome)
        try:
            self.record.note("ended", text, status=status, outcome=outcome, is_lost=is_lost)
            self.record.close()
            # The run does not fail because these cannot be written.
            if self.record.telemetry is not None:
                with self._showing_errors(TELEMETRY):
                    self.record.telemetry.write()
            with self._showing_errors("report.html"):
                write_report(self.folder)
        finally:  # Also if Ctrl-C comes again, so that the next program can use the folder.
            self._keeping.__exit__(None, None, None)
            self._lock.close()

    def discard(self) -> None:
        """Remove the folder of a run that never began."""
        self.folder.discard()

    def _live_config(self) -> LiveConfig[Any]:
        """Return the live config of the run's own file, and of the file that the person gave."""
        cls, config = type(self.loaded.config), self.loaded.config
        own_file, person_file = self.folder.config_path, self.config_file
        files = {own_file: lambda: load_config(cls, own_file).config}
        if person_file is not None:
            files[person_file] = lambda: (
                load_config(cls, person_file, self.overrides, self.environment).config
            )
        return LiveConfig(config, files, self._keep_config)

    def _keep_config(self, config: Any) -> None:
        with self._showing_errors("config.toml"):
            self._write_config(config)

    @contextmanager
    def _showing_errors(self, name: str) -> Iterator[None]:
        """Show errors of the operating system in this block, and continue."""
        try:
            yield
        except OSError as error:
            path = self.folder.path / name
            self.display.message(f"cannot write {path}: {error.strerror or error}")

    def _write_config(self, config: Any) -> None:
        self.folder.write_text("config.toml", to_toml(config, self.loaded.origins))

    def _surroundings(self) -> dict[str, Any]:
        """Return the environment on which the run depends, without variables that could have a
        secret."""
        torch = sys.modules.get("torch")
        named = ("MONARCH_CONFIG_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_", "GLOO_")
        return {
            "python": platform.python_version(),
            "monarch_loop": __version__,
            "torch": getattr(torch, "__version__", None),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "folder": os.getcwd(),
            "git_commit": commit_here(),
            "code_generation": self.generation,
            "code_digest": self.code.digest if self.code else "",
            "procs_per_host": self.procs_per_host,
            "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(named)},
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        }


def _logged(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _plain(outcome: Any) -> Any:
    if is_dataclass(outcome) and not isinstance(outcome, type):
        return asdict(outcome)
    is_plain = outcome is None or isinstance(outcome, (bool, int, float, str, dict, list))
    return outcome if is_plain else None
