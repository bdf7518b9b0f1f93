"""Run folders: ``runs/NAME-STAMP``, their files, and the status of a run.

    config.toml  origin.json  command  env.json     what was run
    metrics.jsonl  events.jsonl  logs/rank*.log     what happened
    checkpoints/  report.html                       what came of it

The status of a run follows from its last ``begun`` or ``ended`` event, and from whether the program
that began it still lives; so a killed run need not record its end.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from monarch import ours
from monarch.config_file import ConfigError, changed_keys, live_keys, load_config
from monarch.errors import JobError
from monarch.observe.json_rows import json_rows, parsed_json
from monarch.observe.kept_files import leads_out, read_kept
from monarch.runs.record.rows import EVENTS, METRICS
from monarch.runs.record.writing import writing
from monarch.runtime.ends.process_start import is_running
from monarch.whole_file import OF_PEOPLE, write_whole

# Checkpoints, logs and chosen variables are nobody else's, unless the user says otherwise.
_MODE = "MONARCH_RUNS_MODE"
RUNS = Path(os.environ.get("MONARCH_RUNS_DIR") or "runs").expanduser()
HOSTS_OPTION = "--hosts"
CONFIG = "config.toml"
TRACEBACK = "traceback.txt"  # of the error that ended the run last
# For runs that continue without their author: see `detached.py`.
DETACHED = "detached.json"
REMOTE = "remote.json"
_ANSWER = "answer"
# The events that begin and end sessions, and all that determine a run's status.
_ENDS = ("begun", "ended")
_TURNS = (*_ENDS, "held", "mended", "begun_again")

Status = Literal["running", "held", "finished", "stopped", "failed", "killed", "empty"]


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config_path(self) -> Path:
        """Return the path of the config. Raises ``JobError`` if a link leads out of the folder."""
        path = self.path / CONFIG
        if leads_out(path, self.path):
            raise JobError(f"{path} is a link that leads out of the run's folder: it is not read")
        return path

    @property
    def config_text(self) -> str:
        """Return the text of the config; "" if it cannot be read."""
        try:
            return read_kept(self.path / CONFIG).decode("utf-8")
        except (OSError, ValueError):
            return ""

    @property
    def is_of_script(self) -> bool:
        """Whether the run is of a plain script, which keeps its own checkpoints."""
        return "script" in self.origins()

    @property
    def has_traceback(self) -> bool:
        """Whether the run failed with an error of the user's code."""
        file = self.path / TRACEBACK
        # A process that only exits leaves none.
        return self.status == "failed" and file.is_file() and file.stat().st_size > 1

    @property
    def checkpoint_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def command(self) -> list[str]:
        """Return the arguments of the command that began the run."""
        try:
            return shlex.split(read_kept(self.path / "command").decode("utf-8"))
        except (OSError, ValueError):
            return []

    @property
    def recipe(self) -> str:
        """Return the recipe's name or file, as in ``monarch run RECIPE``; "" for other commands."""
        program, subcommand, recipe, *_ = [*self.command, "", "", ""]
        is_run = (program, subcommand) == ("monarch", "run") and not recipe.startswith("-")
        return recipe if is_run else ""

    def note_command(self, command: Sequence[str]) -> None:
        """Record the command that begins or resumes the run, with its number of hosts."""
        path = self.path / "command"
        if not path.exists():
            self.write_text("command", shell_line(command) + "\n")
            return
        recorded, status = self.command, path.stat()
        without_hosts = _without_hosts(recorded)
        resumed = [*without_hosts[:3], *_hosts_of(command), *without_hosts[3:]]
        if resumed != recorded:
            self.write_text("command", shell_line(resumed) + "\n")
            # The order of runs follows from the file's time.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def events(self) -> list[dict[str, Any]]:
        """Return all events, oldest first."""
        rows = json_rows(self.path / EVENTS)
        return [
            {"time": 0.0, "text": "", **row} for row in rows if isinstance(row.get("kind"), str)
        ]

    def metrics(self) -> list[dict[str, Any]]:
        """Return one row for each step; steps that a resumed run repeated appear once."""
        return steps_of(json_rows(self.path / METRICS))

    def environment(self) -> dict[str, Any]:
        """Return the environment of the last program that ran this run."""
        return read_json(self.path / "env.json")

    def origins(self) -> dict[str, str]:
        """Return where each value of the config came from."""
        return read_json(self.path / "origin.json")

    @property
    def running_pid(self) -> int | None:
        """Return the pid of the program that now runs this run; ``None`` if none does."""
        last = self._last_turn()
        if last is None or last["kind"] != "begun" or not self._is_alive(last):
            return None
        return int(last["pid"])

    def _last_turn(self) -> dict[str, Any] | None:
        return next((e for e in reversed(self.events()) if e["kind"] in _ENDS), None)

    def _is_alive(self, begun: Mapping[str, Any]) -> bool:
        """Whether the program of a ``begun`` event still lives.

        If it runs on another machine, the answer is that of the last look at it.
        """
        remote = read_json(self.path / REMOTE)
        if remote:
            return bool(remote.get("is_running"))
        return is_running(begun.get("pid", 0), begun.get("started", -1))

    @property
    def status(self) -> Status:
        last = self._last_turn()
        if last is None:
            return "empty"
        if last["kind"] == "ended":
            status: Status = last.get("status", "failed")
            return status
        if not self._is_alive(last):
            return "killed"
        kinds = [event["kind"] for event in self.events() if event["kind"] in _TURNS]
        return "held" if kinds[-1] == "held" else "running"

    @property
    def is_restarting(self) -> bool:
        """Whether ranks were lost since the last step, and are about to restart."""
        lost = next((e for e in reversed(self.events()) if e["kind"] in ("died", "hung")), None)
        if lost is None or self.running_pid is None:
            return False
        steps = self.metrics()
        return not steps or lost["time"] > steps[-1].get("time", 0.0)

    @property
    def is_lost(self) -> bool:
        """Whether the run ended because its hosts or ranks were lost."""
        last = self._last_turn()
        return last is not None and bool(last.get("is_lost"))

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint, here or on a host with a disk of its own."""
        try:
            is_here = any(self.checkpoint_dir.iterdir())
        except OSError:
            is_here = False
        return is_here or self.saved_elsewhere is not None

    @property
    def saved_elsewhere(self) -> tuple[Path, int] | None:
        """Return the newest checkpoint that a host wrote to its own disk, and its step; or
        ``None``."""
        for event in reversed(self.events()):
            if event["kind"] == "saved" and event.get("elsewhere"):
                return Path(event["path"]), event["step"]
        return None

    def _repr_html_(self) -> str:
        from monarch.runs.record.measured import html_of  # In notebooks only.

        status = "restarting" if self.is_restarting else self.status
        return html_of(self.name, self.recipe, status, self.metrics())

    def num_bytes(self) -> int:
        """Return the total size of all files in the run's folder, in bytes."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def write_text(self, name: str, text: str) -> None:
        """Write one of the folder's files atomically."""
        write_whole(self.path / name, text, mode=OF_PEOPLE)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2, default=str) + "\n")

    def take_answer(self) -> str:
        """Return the answer that another program gave since the last call; "" if none."""
        path = self.path / _ANSWER
        try:
            choice = path.read_text()
            path.unlink()
        except (OSError, ValueError):
            return ""
        return choice

    def discard(self) -> None:
        """Remove a folder that ``new_run`` has just made."""
        ours.remove_folder(self.path, self.path.parent, name=r".+-\d{8}-\d{6}(-\d+)?")

    def link_as_latest(self) -> None:
        """Make the link ``latest`` beside the folder point to it."""
        link = self.path.parent / "latest"
        new_link = link.with_name(f".latest.{self.path.name}")
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(self.name)
        os.replace(new_link, link)


def writing_in(folder: Path) -> AbstractContextManager[None]:
    """Turn errors of the operating system in this block into a readable ``JobError``."""
    return writing(f"the run's folder in {folder}")


def make_runs_folder(base: Path) -> None:
    """Make a folder for runs, if there is none. Git ignores it, so it is in no workspace."""
    base.mkdir(parents=True, exist_ok=True)
    ignore = base / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def new_run(name: str, base: Path = RUNS) -> RunFolder:
    """Make an empty folder for a run that begins now, in the folder ``base`` for runs.

    Raises ``JobError`` if it cannot be made.
    """
    with writing_in(base):
        make_runs_folder(base)
        path = first = base / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        for number in itertools.count(2):
            with suppress(FileExistsError):
                path.mkdir(0o700)
                break
            path = first.with_name(f"{first.name}-{number}")
        path.chmod(_mode_of_runs())
        return RunFolder(path)


def _mode_of_runs() -> int:
    """Return the mode for run folders.

    Raises ``JobError`` for an invalid setting, or one that would lock the user out.
    """
    text = os.environ.get(_MODE) or "700"
    if not re.fullmatch(r"0?7[0-7]{2}", text):
        raise JobError(f"{_MODE}={text} is no mode for folders of yours: say 700, 750 or 755")
    return int(text, 8)


def runs_in(base: Path = RUNS) -> list[RunFolder]:
    """Return all runs, the latest last."""
    folders = [path for path in base.glob("*") if path.is_dir() and not path.is_symlink()]
    folders = [path for path in folders if (path / "command").exists()]
    return [RunFolder(path) for path in sorted(folders, key=_began)]


def find_run(wanted: str = "latest", base: Path = RUNS) -> RunFolder:
    """Return the run that ``wanted`` names: a folder, its name, ``latest``, or the start of a name.

    The start of a name means the last such run. Raises ``JobError`` if there is no such run.
    """
    path = Path(wanted)
    if (path / "command").exists():
        return RunFolder(path)
    runs = runs_in(base)
    if not runs:
        raise JobError(f"there are no runs in {base}: `monarch run ddp` makes one")
    if wanted == "latest":
        return runs[-1]
    matches = [run for run in runs if run.name.startswith(wanted)]
    if matches:
        return next((run for run in matches if run.name == wanted), matches[-1])
    names = ", ".join(run.name for run in runs[-5:])
    raise JobError(f"there is no run {wanted!r} in {base}. The last ones: {names}")


def _began(path: Path) -> tuple[int, str]:
    # The command is written once, when a run begins.
    return (path / "command").stat().st_mtime_ns, path.name


def answer_run(run: RunFolder, choice: str) -> None:
    """Give a run that holds one of the answers that it offers.

    Raises ``JobError`` if the run does not hold, or does not offer ``choice``.
    """
    holds = [event for event in run.events() if event["kind"] == "held"]
    choices = holds[-1].get("choices", []) if holds and run.status == "held" else []
    if choice not in choices:
        raise JobError(f"{run.name} does not ask for that: it is {run.status}")
    run.write_text(_ANSWER, choice)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; an empty dictionary if it cannot be read."""
    try:
        value = parsed_json(read_kept(path))
    except OSError:
        return {}
    return value if isinstance(value, dict) else {}


def steps_of(
    rows: Iterable[Mapping[str, Any]], steps: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return one row for each step, from rows in the order in which they were reported.

    Rows of the same step are joined. If the step numbers go back, the run was resumed there, and
    the later steps from before are dropped. ``steps``, the result for the rows before these, is
    extended in place.
    """
    steps = [] if steps is None else steps
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        while steps and steps[-1]["step"] > step:
            steps.pop()
        if steps and steps[-1]["step"] == step:
            steps[-1].update(row)
        else:
            steps.append(dict(row))
    return steps


def shell_line(arguments: Sequence[str]) -> str:
    """Return a command as a person would type it."""
    return shlex.join(arguments)


def find_unfinished(base: Path, name: str, command: Sequence[str]) -> RunFolder | None:
    """Return the last run of this command that no program runs now, if the run can be resumed; else
    ``None``.

    A killed or stopped run can be resumed. A failed run can be resumed if it has a checkpoint, or
    if it failed because its hosts or ranks were lost.
    """
    for run in reversed(runs_in(base)):
        if not run.name.startswith(f"{name}-") or _without_hosts(run.command) != list(command):
            continue
        status = run.status
        if status == "running":
            continue
        goes_on = status == "failed" and (run.has_checkpoint or run.is_lost)
        if goes_on or status in ("killed", "stopped"):
            return run
        return None
    return None


def _without_hosts(command: Sequence[str]) -> list[str]:
    """Return the command without its number of hosts: a run may be resumed with another number."""
    num_words = len(_hosts_of(command))
    return [*command[:3], *command[3 + num_words :]]


def _hosts_of(command: Sequence[str]) -> Sequence[str]:
    """Return the option with the number of hosts, which follows the recipe; empty if there is
    none."""
    return command[3:5] if command[3:4] == [HOSTS_OPTION] else []


def config_of(run: RunFolder, config_class: type[Any]) -> Any | None:
    """Return the run's last config; ``None`` if the recipe has other keys by now."""
    try:
        return load_config(config_class, run.config_path).config
    except ConfigError:
        return None


def what_changed(run: RunFolder, config: Any) -> list[str]:
    """Return the keys whose values differ from the run's last config. Live keys are left out.

    If the recipe has other keys by now, the result is one text that says so.
    """
    last = config_of(run, type(config))
    if last is None:
        return ["the recipe's keys"]
    free = set(live_keys(type(config)))
    return [key for key in changed_keys(last, config) if key not in free]
