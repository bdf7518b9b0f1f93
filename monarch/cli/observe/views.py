"""``monarch top``, and the actions of views on ranks: stacks, a profile, an end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.cli.observe.target import StayHere, hang_here, visit_here
from monarch.errors import JobError
from monarch.observe.query import live_rows
from monarch.observe.stacks import dump_in_words, stacks_in_words
from monarch.observe.trace import MeshTrace
from monarch.observe.visit import MeshVisit, procs_of
from monarch.runs.record.folder import RUNS, runs_in
from monarch.runtime.ends.process_group import signal_process
from monarch.runtime.ends.process_start import process_start
from monarch.view.run_view import log_lines

_PROFILE_SECONDS = 2.0
_MOST = 16
_LINES = 40


class RankActions:
    """Actions on the procs that ``visit`` sees, by uid.

    Each returns a text, or raises ``JobError`` if a proc has ended or the action is not possible.
    """

    def __init__(self, visit: MeshVisit) -> None:
        self._visit = visit
        self._actions: dict[str, Callable[[Sequence[str]], str]] = {
            "stacks": self.stacks,
            "profile": self.profile,
            "hang": self.hang,
            "log": self.log,
            "stop": self.stop,
        }

    def do(self, action: str, uids: Sequence[str]) -> str:
        """Run an action on these procs, and return its text.

        Raises ``JobError`` for an unknown action.
        """
        if action not in self._actions:
            raise JobError(f"{action!r} is not one of {', '.join(self._actions)}")
        return self._actions[action](uids)

    def stacks(self, uids: Sequence[str]) -> str:
        """Return the stacks of these ranks."""
        procs = self._chosen(uids)
        answers = self._visit.stacks(procs)
        uids_without = {stacks.uid for stacks in answers if "error" in stacks.answer}
        silent = [proc for proc in procs if proc["uid"] in uids_without]
        lines = stacks_in_words(answers)
        for uid, (dump, error) in self._visit.py_spy(silent).items() if silent else ():
            lines += [f"by py-spy: {self._named().get(uid, uid)}"]
            lines += dump_in_words(dump) if dump else [f"    {error}"]
        return "\n".join(lines).rstrip()

    def profile(self, uids: Sequence[str]) -> str:
        """Record with torch's profiler for two seconds, and write one file for all ranks.

        Return its path, and the errors of ranks that have no trace.
        """
        profiles = self._visit.profile(self._chosen(uids), _PROFILE_SECONDS)
        looks = self._visit.look(flight=True)
        trace = MeshTrace([*self._visit.drain().packed, live_rows(looks)])
        failed = trace.add_profiles(profiles)
        names = self._named() if failed else {}
        errors = [f"{names.get(uid, uid)}: {error}" for uid, error in failed.items()]
        path = Path(f"profile-{time.strftime('%H%M%S')}.json.gz")
        trace.write(path)
        return "\n".join([f"{path.absolute()}: open it at https://ui.perfetto.dev", *errors])

    def hang(self, uids: Sequence[str]) -> str:
        """Return the text of `monarch hang`: which ranks wait for which."""
        del uids
        return "\n".join(hang_here(self._visit).lines)

    def log(self, uids: Sequence[str]) -> str:
        """Return the last lines of the run that is running here."""
        ranks = {self._rank(uid) for uid in uids}
        for run in reversed(runs_in(RUNS)):
            if run.running_pid is not None:
                logs = log_lines(run)
                chosen = {name: lines for name, lines in logs.items() if _number(name) in ranks}
                return "\n".join(
                    f"{name}: {line}"
                    for name, lines in (chosen or logs).items()
                    for line in lines[-_LINES:]
                )
        return "no run goes on here: what procs print is in their program's terminal"

    def stop(self, uids: Sequence[str]) -> str:
        """Ask the program that owns these ranks to stop, as Ctrl-C does: a run saves first."""
        looks = self._visit.look()
        pids = {
            state["pid"]
            for look in looks
            if (state := look.get("client_state"))
            and any(proc["uid"] in uids for proc in look.get("procs", ()))
        }
        if not pids:
            raise JobError("no program on this machine owns these ranks")
        for pid in pids:
            signal_process(pid, process_start(pid) or 0, signal.SIGINT)
        return f"asked to stop: pid {', '.join(map(str, sorted(pids)))}; a run saves first"

    def _procs(self) -> dict[str, Mapping[str, Any]]:
        return {proc["uid"]: proc for look in self._visit.look() for proc in look.get("procs", ())}

    def _chosen(self, uids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the current state of these procs, at most ``_MOST``.

        Raises ``JobError`` if one of them has ended, or none is named.
        """
        chosen_uids = list(dict.fromkeys(uids))[:_MOST]
        procs = [proc for proc in procs_of(self._visit.look(), chosen_uids) if proc.get("address")]
        if len(procs) < len(chosen_uids) or not chosen_uids:
            raise JobError("these ranks are gone" if chosen_uids else "choose ranks first")
        return procs

    def _named(self) -> dict[str, str]:
        return {uid: f"{proc['name']} {proc['rank']}" for uid, proc in self._procs().items()}

    def _rank(self, uid: str) -> int:
        proc = self._procs().get(uid)
        return int(proc["rank"]) if proc is not None else -1


def _number(stem: str) -> int:
    digits = stem.removeprefix("rank")
    return int(digits) if digits.isdigit() else -1


def top() -> None:
    """Show the view, until q or Ctrl-C."""
    if not sys.stdout.isatty():
        raise JobError("monarch top draws on a terminal; for programs: monarch query queues --json")
    try:
        from monarch.view.top import MonarchTop
    except ImportError:
        raise JobError(
            "monarch top needs Textual, which is not installed: pip install 'monarch-loop[observe]'"
        ) from None
    visit = visit_here()
    MonarchTop(StayHere(visit).look, RankActions(visit).do, Path.cwd().name).run()
