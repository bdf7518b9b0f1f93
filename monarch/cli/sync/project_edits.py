"""Edits of ``monarch.toml`` during a watch: another workspace, another job, mistakes."""

from __future__ import annotations

from pathlib import Path

from monarch.cli.project import PROJECT_FILE, Project, load_project
from monarch.cli.sync.output import Output
from monarch.cli.sync.project_workspace import workspace_of
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch_sync import Workspace

SETTLE_SECONDS = 0.1  # how long an edited file must stay unchanged before it is read


class ProjectEdits:
    """Watches one project's file, and reports edits that matter to its users.

    ``workspace`` is the last workspace from a file without mistakes.
    """

    def __init__(self, project: Project, output: Output) -> None:
        self.workspace: Workspace = workspace_of(project)
        self._project = project
        self._job = project.file.job
        self._output = output
        self._file = project.directory / PROJECT_FILE
        self._mark = _mark(self._file)
        #: The mark at the last look, and since when the file has it.
        self._unsettled = self._mark, 0.0

    @property
    def is_unsettled(self) -> bool:
        """Whether an edit is in progress."""
        return self._unsettled[0] != self._mark

    def look(self, now: float) -> bool:
        """Read the file again; return whether it names another workspace than at the last call.

        ``now`` is in seconds, by any clock that never stops.
        """
        mark = _mark(self._file)
        if mark == self._mark:
            self._unsettled = mark, 0.0
            return False
        # Many editors empty a file before they write it, and an empty one means the defaults.
        if mark != self._unsettled[0]:
            self._unsettled = mark, now
        if mark is not None and now - self._unsettled[1] < SETTLE_SECONDS:
            return False
        self._mark = mark
        if mark is None:
            self._output.note("project", f"{PROJECT_FILE} is gone; going on with what it said")
            return False
        try:
            project = load_project(str(self._file))
            workspace = workspace_of(project)
        except (ConfigError, MonarchError) as error:
            self._output.failed(f"{error}\n  going on with what {PROJECT_FILE} said before")
            return False
        if project.file.job != self._project.file.job:
            is_back = project.file.job == self._job
            now_is = "is as it was when the watch began" if is_back else "has changed"
            self._output.note(
                "project",
                f"[job] in {PROJECT_FILE} {now_is}; the hosts stay as they are until "
                "`monarch apply`",
            )
        self._project = project
        is_other, self.workspace = workspace != self.workspace, workspace
        return is_other


def _mark(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
