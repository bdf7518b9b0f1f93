"""The actions of the page's buttons on a run, and the files that its errors name."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from monarch.cli.sync.generations import go_back
from monarch.cli.sync.output import Lines
from monarch.cli.sync.project_workspace import find_project, whole_of, workspace_of
from monarch.cli.sync.pusher import pusher_here
from monarch.cli.terminal.terminal import Terminal
from monarch.config_file import ConfigError
from monarch.errors import JobError, MonarchError
from monarch.observe.kept_files import leads_out
from monarch.runs.record.folder import RunFolder, answer_run, find_run
from monarch.runs.record.slowness import ASKED, KEYS
from monarch.wire.bulletin import Bulletin
from monarch_sync import SyncError, Workspace

_IN_REPLICA = "/workspace/"


class RunActions:
    """Actions on a run of this folder, by its name.

    Each returns a text, or raises ``JobError`` if the run does not take the action now.
    """

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[RunFolder], str]] = {
            "rollback": self.roll_back,
            "take-t": partial(self.take, "t"),
            "take-c": partial(self.take, "c"),
            "hold": partial(self.ask_slow, "k"),
            "more": partial(self.ask_slow, "+"),
        }

    def knows(self, action: str) -> bool:
        return action in self._actions

    def do(self, action: str, names: Sequence[str]) -> str:
        """Run an action on one run, and return its text.

        Raises ``JobError`` for an unknown action, or not exactly one name.
        """
        if len(names) != 1:
            raise JobError("name one run")
        return self._actions[action](find_run(names[0]))

    def roll_back(self, run: RunFolder) -> str:
        """Roll the hosts back, as `monarch sync rollback` does, while the run holds."""
        if run.status != "held":
            raise JobError(f"{run.name} does not hold: it is {run.status}")
        printed = io.StringIO()
        try:
            workspace = whole_of(find_project(None))
            go_back(pusher_here(), workspace, None, Lines(Terminal(printed)))
        except (ConfigError, SyncError) as error:
            raise JobError(str(error)) from None
        return printed.getvalue()

    def take(self, choice: str, run: RunFolder) -> str:
        """Answer a run that holds because its ranks differ, with a ``choice`` that it offers."""
        answer_run(run, choice)
        return f"told {run.name}"

    def ask_slow(self, key: str, run: RunFolder) -> str:
        """Ask the run to hold ("k") or to wait longer ("+") while a step on new code takes long."""
        pusher_here().post(Bulletin(ASKED, KEYS[key]))
        return f"asked {run.name}"


class OwnFiles:
    """Finds the person's own files by the names that errors give."""

    def __init__(self) -> None:
        self._workspace: Workspace | None = None
        with suppress(ConfigError, MonarchError):  # Without a project it knows this folder only.
            self._workspace = workspace_of(find_project(None))

    def locate(self, file: str) -> tuple[Path, Path] | None:
        """Return the file and the user's folder that it is in; ``None`` for a file of somebody
        else.
        """
        workspace = self._workspace
        folders = [Path(f.local) for f in workspace.folders] if workspace is not None else []
        folders = [*folders, Path.cwd()]
        paths = [(folder / file, folder) for folder in folders]
        remote = file.rpartition(_IN_REPLICA)[2]
        if workspace is not None and remote != file:
            paths += [(path, folder) for path in workspace.locate(remote) for folder in folders]
        return next(
            (
                (path, folder)
                for path, folder in paths
                if os.path.isfile(path) and not leads_out(path, folder)
            ),
            None,
        )
