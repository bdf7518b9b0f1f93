"""The commands behind the keys of a watch."""

from __future__ import annotations

from collections.abc import Callable

from monarch.cli.sync.generations import compared, go_back, show_differences
from monarch.cli.sync.other_users import OtherUsers
from monarch.cli.sync.output import Output
from monarch.cli.sync.pusher import WHOLE_HISTORY, Pusher
from monarch.cli.sync.timeline import goal, timeline
from monarch.cli.terminal.keys import Keys
from monarch.cli.terminal.terminal import Terminal
from monarch.errors import MonarchError
from monarch.runs.record.slowness import ASKED, KEYS
from monarch.runtime.workspace.packages.surroundings import Surroundings
from monarch.wire.bulletin import Bulletin
from monarch_sync import SyncError, Workspace

KEYS_HINT = "keys: r push again, b roll back, d diff, h help, q quit"
DEV_KEYS_HINT = KEYS_HINT.replace("h help", "o dashboard, h help")
_HELP = """\
r  push again, all of it: what was refused is tried once more
b  roll back to the generation before, or to the one that went well where a run
   holds; your own files stay as they are
d  how your files differ from the generation before
t  where ranks of a run have come apart: take the state of one for all; c: take the
   last checkpoint's
k  hold the run, where a step on new code takes long
+  give that step more time
q  stop watching, as Ctrl-C does; hosts and processes stay as they are"""
_DEV_HELP = "o  open the dashboard in a browser"


class KeyCommands:
    """The commands of one watch; ``push`` sends all of the workspace."""

    def __init__(
        self,
        keys: Keys,
        output: Output,
        others: OtherUsers,
        push: Callable[[], object],
        *,
        best_effort: bool,
    ) -> None:
        self._keys = keys
        self._output = output
        self._others = others
        self._push = push
        self._is_best_effort = best_effort
        self.is_quitting = False

    def do_all(self, pusher: Pusher | None, workspace: Workspace) -> None:
        """Run the commands of the keys that were pressed since the last call."""
        while not self.is_quitting and (key := self._keys.take()):
            self._do(key, pusher, workspace)

    def hint(self) -> None:
        """Show which keys there are; `monarch dev`, which passes keys on, has one more."""
        self._output.note("keys", DEV_KEYS_HINT if self._keys.is_piped else KEYS_HINT)

    def _do(self, key: str, pusher: Pusher | None, workspace: Workspace) -> None:
        if key == "q":
            self.is_quitting = True
        elif key in "h?":
            self._output.note("help", f"{_HELP}\n{_DEV_HELP}" if self._keys.is_piped else _HELP)
        elif key in "tc":
            self._others.answer(key)
        elif key not in ("r", "b", "d", *KEYS):
            self.hint()
        elif pusher is None:
            self._output.note("keys", "there is no allocation: `monarch apply` brings one up")
        elif key in KEYS:
            pusher.post(Bulletin(ASKED, KEYS[key]))
        elif key == "r":
            self._push()
        else:
            self._look_back(pusher, workspace, undo=key == "b")

    def _look_back(self, pusher: Pusher, workspace: Workspace, *, undo: bool) -> None:
        """With ``undo``, roll back as `go_back` does; else show how the files differ from before.

        "Before" is the latest generation whose state differs from that of the current generation.
        """
        all_folders = Surroundings(workspace).whole()
        try:
            if undo:
                effort = self._is_best_effort
                came_to = go_back(pusher, all_folders, None, self._output, best_effort=effort)
                self._others.came_to, self._others.is_theirs = came_to, True
                return
            rows = timeline(pusher.past(pusher.answering()).histories(WHOLE_HISTORY))
            _, _, diff_lines = compared(pusher, all_folders, goal(rows, None))
            if not show_differences(diff_lines, Terminal()):
                self._output.note("diff", "your files are what they were then")
        except (MonarchError, SyncError) as error:
            self._output.failed(str(error))
