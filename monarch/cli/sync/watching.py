"""``monarch sync --watch``: pushes at every save, until Ctrl-C.

It survives allocations that end and return, edits of ``monarch.toml``, and a workspace folder that
is moved away: each is reported once, nothing is lost, and the next push sends all saves until then.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from monarch.cli.large_files import NotSent
from monarch.cli.own_output import files_of_our_processes, patterns_of
from monarch.cli.project import Project, find_job, noted_job
from monarch.cli.sync.hot_files import HotFiles, is_code
from monarch.cli.sync.key_commands import KeyCommands
from monarch.cli.sync.other_users import OtherUsers
from monarch.cli.sync.output import Output, listed
from monarch.cli.sync.project_edits import SETTLE_SECONDS, ProjectEdits
from monarch.cli.sync.push_news import PushNews, Retrying
from monarch.cli.sync.pusher import Pusher, PushOptions
from monarch.cli.terminal.interrupts import at_once_from_here
from monarch.cli.terminal.keys import Keys
from monarch.errors import MonarchError
from monarch.runtime.client_agent import client
from monarch.runtime.workspace.session import session_of
from monarch_sync import SyncError, SyncReport, WatchEnded, Watcher, WorkspaceMissing
from monarch_sync.ignoring.ignore import is_wanted
from monarch_sync.scanning.identities import Identities
from monarch_sync.words import printable

_TICK_SECONDS = 1.0
_AUDIT_SECONDS = 60.0  # an owner that is stopped answers never
_LOOK_AGAIN_SECONDS = 5.0  # after unreadable files: no event tells when a mount is back


class Watching:
    """One ``monarch sync --watch``, from the first push until Ctrl-C."""

    def __init__(
        self, project: Project, pusher: Pusher, output: Output, options: PushOptions, keys: Keys
    ) -> None:
        #: The folder in which the command was started.
        self._start = Path.cwd()
        self._output = output
        #: The options of the next push; packages go along until a push has come through.
        self._options = options
        #: The project file, and what people do to it.
        self._edits = ProjectEdits(project, output)
        #: What is pushed: the project's workspace, without output and hot files.
        self._workspace = self._edits.workspace
        #: Which folder each path was when it was seen first.
        self._identities = Identities()
        #: ``None`` while there is no allocation.
        self._pusher: Pusher | None = pusher
        #: ``None`` while a folder is gone.
        self._following: _WatcherThread | None = None
        #: What others do with the allocation. A program that pipes keys reports runs itself.
        self._others = OtherUsers(output, self._wake, tells_runs=not keys.is_piped)
        self._keys = keys
        keys.on_press = self._wake
        self._commands = KeyCommands(
            keys, output, self._others, self._push_all, best_effort=options.best_effort
        )
        #: Whether saves may not have been pushed, so that the next push looks at everything.
        self._is_behind = False
        #: Which pushes are reported.
        self._news = PushNews()
        #: When the last push ended, by the monotonic clock.
        self._pushed_at = 0.0
        self._hot_files = HotFiles(self._workspace)
        #: Files that processes of ours write.
        self._outputs: set[Path] = set()
        self._retrying = Retrying()
        #: The error that was reported last; "" after a push that came through.
        self._failure = ""
        #: The reported reason why saves are polled for; "" if the system tells them.
        self._polls_because = ""
        self._is_pushing = False
        #: Reports of pushes whose audits are under way, and until when each is waited for.
        self._to_audit: list[tuple[SyncReport, float]] = []

    def run(self) -> None:
        """Push and watch until interrupted."""
        try:
            self._missing()  # From here on they are known.
            self._push_all()
            self._options.large.asks = False  # From here on, keys are for the watch.
            if self._pusher is not None:
                self._pusher.ends_at_once = False  # The watch says itself how it ends.
                self._others.listen(self._pusher)
            self._follow_if_there()
            with self._keys.listen() as has_keys:
                if has_keys:
                    self._commands.hint()
                while not self._commands.is_quitting:
                    self._step()
            self._tell_end()
        except KeyboardInterrupt:
            at_once_from_here()
            self._tell_end()
        finally:
            self._others.close()
            self._unfollow()

    def _step(self) -> None:
        """Wait for a save or another change, for a moment at most, and handle it."""
        self._others.tell()
        self._commands.do_all(self._pusher, self._workspace)
        if self._commands.is_quitting:
            return
        if self._following is None:
            self._wait_for_folder()
            return
        self._tell_audits()
        is_short = self._edits.is_unsettled or self._to_audit
        patience = SETTLE_SECONDS if is_short else _TICK_SECONDS
        try:
            touched = self._following.next(patience)
        except WatchEnded:
            self._lose_folder()
            return
        except OSError as error:
            self._tell_failure(str(error))
            self._unfollow()
            time.sleep(_TICK_SECONDS)  # The resource that was short may be there again.
            return
        if self._missing():
            self._lose_folder()
            return
        self._tell_slowness(self._following.polls_because)
        is_new = self._look_at_project()
        is_new |= self._look_at_allocation(is_idle=touched is None)
        if self._pusher is None or self._edits.is_unsettled:
            self._is_behind |= is_new or touched is not None
        elif is_new or self._is_behind:
            self._push(None)
        elif touched is not None:
            code = self._without_output(touched)
            if self._others.is_theirs:
                code = {path for path in code if self._is_save(path)}
            if code or not touched:
                self._push(code or None)
        elif self._is_time_to_look_again() or self._retrying.is_due(time.monotonic()):
            self._push(frozenset())

    def _without_output(self, touched: AbstractSet[Path]) -> AbstractSet[Path]:
        """Return the touched paths without those into which our own processes write their output.

        From then on the workspace ignores these files.
        """
        suspects = {path for path in touched - self._outputs if not is_code(path.name)}
        writers = files_of_our_processes() if suspects else {}
        for path in suspects:
            file = os.path.realpath(path)
            patterns = patterns_of(self._workspace, {file}) if file in writers else []
            if patterns:
                self._workspace = self._workspace.ignoring(patterns)
                self._outputs.add(path)
                self._output.note(
                    "output",
                    f"{printable(path.name)} is written by a monarch process (pid "
                    f"{writers[file]}): it is output, not code, and left out",
                    file=str(path),
                    pid=writers[file],
                )
        return touched - self._outputs

    def _is_save(self, path: Path) -> bool:
        """Whether a touched path causes a push: code, a deleted path, or one that is not ignored.

        It is asked after a rollback. A push would then replace the older code, so a write to an
        ignored file, such as a log, must not cause one.
        """
        if is_code(path.name) or not os.path.lexists(path):
            return True
        for folder in self._workspace.folders:
            relative = os.path.relpath(path, folder.local)
            if not relative.startswith("../") and is_wanted(
                folder.local, self._workspace.ignore, relative, {}, uses_git=folder.follows_git
            ):
                return True
        return False

    def _is_time_to_look_again(self) -> bool:
        return self._news.is_unreadable and time.monotonic() - self._pushed_at > _LOOK_AGAIN_SECONDS

    def _push(self, touched: Iterable[Path] | None, *, is_first: bool = False) -> None:
        assert self._pusher is not None
        self._is_pushing = True
        try:
            report = self._pusher.push(self._workspace, touched, self._output, self._options)
        except WorkspaceMissing:
            self._is_behind = True
            self._lose_folder()
        except NotSent:
            raise
        except (MonarchError, SyncError) as error:
            # Files touched before a push that failed half-way may not have been looked at.
            self._is_behind, self._others.came_to = True, 0
            if not self._look_at_allocation(is_idle=True) and self._pusher is not None:
                self._tell_failure(str(error))
        else:
            # An interrupt of the report does not interrupt the push.
            self._is_pushing = self._is_behind = False
            self._failure, self._options = "", self._options._replace(env=False)
            self._tell(report, is_first)
        self._is_pushing, self._pushed_at = False, time.monotonic()

    def _push_all(self) -> None:
        self._push(None, is_first=True)

    def _tell(self, report: SyncReport, is_first: bool) -> None:
        if self._news.pushed(report) or is_first:
            self._output.pushed(report)
        if self._news.fixed:
            self._output.good("fixed", self._news.fixed, generation=report.generation)
        if not report.ok:
            self._others.came_to = 0
        else:
            self._to_audit.append((report, time.monotonic() + _AUDIT_SECONDS))
            self._others.pushed(report.generation)
            self._tell_hot_files(report)
        if self._retrying.pushed(report, time.monotonic()):
            self._output.note("retrying", self._retrying.text)

    def _tell_audits(self) -> None:
        """Report the audits that are finished. A save does not wait for one: its push ends it."""
        reports, self._to_audit = self._to_audit, []
        for report, deadline in reports:
            if report.wait_for_audit(0.0):
                self._output.audited(report)
            elif time.monotonic() < deadline:
                self._to_audit.append((report, deadline))

    def _tell_hot_files(self, report: SyncReport) -> None:
        hot = self._hot_files.pushed(report.changed_files, time.monotonic())
        if hot is None:
            return
        if hot.is_sure:
            self._workspace = self._workspace.ignoring([hot.pattern])
        name = printable(hot.pattern.strip("/"))
        text = (
            f"{name} is written by a program, as it seems, and left out from here on. To leave it "
            "out of later pushes, too, add the line"
            if hot.is_sure
            else f"{name} was pushed again. If a training writes it, leave it out: add the line"
        )
        self._output.note(
            "restless",
            f"{text}\n    {printable(hot.pattern)}\nto {printable(str(hot.file))}",
            pattern=hot.pattern,
            file=str(hot.file),
            left_out=hot.is_sure,
        )

    def _tell_failure(self, error: str) -> None:
        if error != self._failure:
            self._output.failed(error)
        self._failure = error

    def _tell_slowness(self, polls_because: str) -> None:
        if polls_because and polls_because != self._polls_because:
            self._output.note(
                "polling",
                f"{polls_because}; so it is looked at again and again, and a save may take a "
                "moment to be seen",
            )
        self._polls_because = polls_because

    def _tell_end(self) -> None:
        where = ""
        if self._is_pushing and self._pusher is not None:
            with contextlib.suppress(MonarchError):
                where = f"; a push was interrupted, {self._pusher.generations()}"
        self._output.note(
            "stopped", f"stopped watching; hosts and processes stay as they are{where}"
        )

    def _wake(self) -> None:
        following = self._following
        if following is not None:
            following.wake()

    # The folders

    def _follow_if_there(self) -> bool:
        """Watch the folders, if all of them exist; return whether they do."""
        try:
            self._following = _WatcherThread(session_of(client()).watcher(self._workspace))
        except WorkspaceMissing:
            return False
        folders = [str(folder.local) for folder in self._workspace.folders]
        text = f"watching {listed(folders)}; Ctrl-C ends it"
        self._output.note("watching", text, folders=folders)
        return True

    def _unfollow(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()

    def _missing(self) -> list[WorkspaceMissing]:
        """Return the errors of folders that do not exist."""
        missing = []
        for folder in self._workspace.folders:
            try:
                self._identities.check(folder)
            except WorkspaceMissing as error:
                missing.append(error)
        return missing

    def _lose_folder(self) -> None:
        self._unfollow()
        missing = self._missing()
        if not missing:
            return  # Replaced rather than gone: the next step follows the new one.
        gone = [error.folder for error in missing]
        state = "is gone" if not any(map(os.path.isdir, gone)) else missing[0].reason
        self._output.note(
            "folder-lost",
            f"{listed(gone)} {state}; hosts keep what they have. Waiting for it to come back",
            folders=gone,
        )

    def _wait_for_folder(self) -> None:
        if self._missing():
            time.sleep(_TICK_SECONDS)
            return
        # The working directory may be the folder that was away: paths relative to it are invalid.
        with contextlib.suppress(OSError):
            os.chdir(self._start)
        if self._follow_if_there():
            self._look_at_allocation(is_idle=True)
            self._is_behind = True

    def _look_at_project(self) -> bool:
        """Read the project's edits; return whether they have changed the workspace."""
        if not self._edits.look(time.monotonic()):
            return False
        self._workspace = self._edits.workspace
        self._hot_files = HotFiles(self._workspace)
        self._unfollow()
        self._follow_if_there()
        return True

    # The allocation

    def _look_at_allocation(self, *, is_idle: bool) -> bool:
        """Check the allocation; return whether there is another one now, or one again.

        While an allocation is up, this is checked only if ``is_idle``.
        """
        pusher = self._pusher
        if pusher is not None and not is_idle:
            return False
        job = find_job()
        if job is not None and (pusher is None or job.urls() != pusher.job.urls()):
            self._pusher = Pusher(job)
            self._pusher.ends_at_once = False
            message = "another allocation is up" if pusher else "the allocation is up again"
            self._output.note("allocation", message)
            self._others.listen(self._pusher)
            return True
        if pusher is None or job is not None:
            return False
        goes_on_with_some = self._options.best_effort and bool(pusher.answering())
        # The state file may have been deleted: the allocation runs all the same.
        if not pusher.job.is_running() and not goes_on_with_some:
            self._pusher = None
            self._others.close()
            job_left = noted_job()
            reason = job_left.why_ended() if job_left is not None else ""
            text = "the allocation has ended. "
            if reason:
                text = f"hosts of the allocation have ended:\n{reason}\n"
            self._output.note(
                "allocation-lost",
                f"{text}What you save is pushed as soon as there is one again: `monarch apply`. "
                "A run that holds on it brings its hosts up by itself",
            )
        return False


class _WatcherThread:
    """A watcher on a thread of its own, so that waiting for saves can be interrupted."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._items: queue.SimpleQueue[AbstractSet[Path] | Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-watch", daemon=True)
        self._thread.start()

    @property
    def polls_because(self) -> str:
        """Return why the watcher polls for saves, instead of getting events; "" if it gets
        events."""
        return self._watcher.polls_because

    def next(self, timeout_seconds: float) -> AbstractSet[Path] | None:
        """Return the paths touched since the last call; an empty set means that everything must be
        scanned.

        Returns ``None`` if there were none in time, or ``wake`` was called. Raises ``WatchEnded``
        if a folder is gone, and any other error that has ended the watch.
        """
        try:
            item = self._items.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        touched = self._checked(item)
        while not self._items.empty():
            more = self._checked(self._items.get())
            if touched is None or more is None:
                touched = more if touched is None else touched
            else:
                touched = touched | more if touched and more else set()
        return touched

    def wake(self) -> None:
        """Make `next` return, from any thread, so that its caller checks for other changes."""
        self._items.put(None)

    def _checked(self, item: AbstractSet[Path] | Exception | None) -> AbstractSet[Path] | None:
        if isinstance(item, Exception):
            raise item
        return item

    def _run(self) -> None:
        try:
            for touched in self._watcher:
                self._items.put(touched)
        except Exception as error:  # `next` raises it on the thread that waits.
            self._items.put(error)

    def close(self) -> None:
        self._watcher.close()
        self._thread.join(5.0)
