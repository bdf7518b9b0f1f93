"""A push, from the author's side, over all hosts and all processes: the steps in their order.

Scan, stage on every host, prepare in every process, bring all ranks to a halt between the same
two messages, commit the files, change the code, go. Until the commit nothing visible has changed
anywhere; a refusal by any process, until the last rank has changed, puts everything back for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from monarch.core.code_switch.table import CoordinatorState, Said, Vote
from monarch.runtime.node import Node
from monarch.runtime.workspace.code_switch.coordinating import Coordinating, Purpose
from monarch.runtime.workspace.code_switch.owner import Owner
from monarch.runtime.workspace.code_switch.remote_owner import RemoteOwner
from monarch.runtime.workspace.pushing.first_look import FirstLook
from monarch.runtime.workspace.pushing.host_in_push import Busy, HostInPush, Stale
from monarch.runtime.workspace.pushing.host_states import check_emptied, with_unreadable
from monarch.runtime.workspace.pushing.hosts_in_push import HostsInPush
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.planning import plan_of
from monarch.runtime.workspace.pushing.push_words import PushWords
from monarch.runtime.workspace.pushing.sharing import HERE
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.errors import MovedUnderfoot
from monarch_sync.host_report import HostReport
from monarch_sync.manifest import Manifest
from monarch_sync.progress import progress
from monarch_sync.report import Problem, SyncReport
from monarch_sync.scanning.scanner import Scan

_MAX_RESCANS = 3
_BUSY_SECONDS = 30.0
_MAX_PAUSE_SECONDS = 0.5

_NAMES = {
    CoordinatorState.PREPARING: "prepare",
    **dict.fromkeys(
        (
            CoordinatorState.FENCING,
            CoordinatorState.LIFTING,
            CoordinatorState.PAUSING,
            CoordinatorState.HALTING,
        ),
        "wait",
    ),
    CoordinatorState.SHOWING: "commit",
    CoordinatorState.PATCHING: "switch",
    CoordinatorState.RELEASING: "switch",
}


class WorkspacePush(Purpose):
    """One push. Its steps share what they find out. ``owners``, unless given, are the clients of
    the hosts.

    With ``best_effort`` hosts that cannot follow are left behind and named in the report, and
    the others go on without them; so are those that are ``silent`` (why, by their uids), without
    being asked again. ``settle`` waits until the author's files may be looked at again. Unless it
    ``may_empty``, it stops where hosts have files of a folder that seems to have become empty.
    ``local_roots`` are folders of this host that get the files, too.
    """

    def __init__(
        self,
        memory: Memory,
        node: Node,
        owners: Sequence[Owner] | None,
        mode: str,
        *,
        best_effort: bool = False,
        silent: Mapping[Uid, str] | None = None,
        settle: Callable[[], None] = lambda: None,
        may_empty: bool = True,
        local_roots: Sequence[str] = (),
    ) -> None:
        self._memory = memory
        self._here = LocalReplicas(memory.workspace, local_roots)
        self._node = node
        self._in_push = HostsInPush(memory, node)
        self._finds_owners = owners is None
        self._owners: Sequence[Owner] = owners or ()
        self._clients: list[ProcAddress] = []
        self._mode = mode
        self._is_best_effort = best_effort
        self._silent = dict(silent or {})
        self._settle = settle
        self._may_empty = may_empty
        self._report = SyncReport()
        self._words = PushWords(memory, self._in_push, self._report)
        self._mark = time.perf_counter()
        self._progress = progress()

    def run(
        self,
        addresses: Sequence[ProcAddress],
        touched: Iterable[Path] | None,
        max_rescans: int = _MAX_RESCANS,
    ) -> SyncReport:
        """Push, again where another author was at it, and say what has come of it."""
        started = time.perf_counter()
        deadline = started + _BUSY_SECONDS
        num_rescans = num_busy = 0
        while True:
            try:
                hosts = self._push(addresses, touched)
                break
            except (MovedUnderfoot, Stale):
                # A file changed meanwhile, or another author was here: look again.
                self._settle()
                num_rescans += 1
                if num_rescans == max_rescans:
                    raise
                self._memory.views.clear()
            except Busy as busy:
                if time.perf_counter() > deadline:
                    self._report.errors.append(
                        f"{busy}, and has not finished within {_BUSY_SECONDS:g} s: push again "
                        "when that is over"
                    )
                    hosts = []
                    break
                # At random, so that two pushes in each other's way do not meet again.
                num_busy += 1
                time.sleep(random.uniform(0, min(_MAX_PAUSE_SECONDS, 0.02 * 2**num_busy)))
                self._memory.views.clear()
            touched = None
        report = self._report
        report.hosts = [self._words.of_host(host, self._here) for host in hosts]
        report.changed_files = sorted({*report.changed_files, *self._here.files})
        report.notes += self._here.notes
        if self._is_best_effort:
            report.hosts += [
                HostReport(self._in_push.name(uid), error=why)
                for uid, why in self._in_push.failed.items()
            ]
        report.seconds = time.perf_counter() - started
        return report

    def _push(
        self, addresses: Sequence[ProcAddress], touched: Iterable[Path] | None
    ) -> list[HostInPush]:
        memory, report, in_push = self._memory, self._report, self._in_push
        report.errors.clear()
        report.refusals.clear()
        report.was_taken_back = False
        in_push.failed.clear()
        in_push.failed.update(self._silent)
        in_push.clients.clear()
        in_push.meet(addresses)
        report.generation = memory.generation
        first = FirstLook(memory, in_push, addresses if touched is None else ())
        hosts = first.hosts
        try:
            scan = first.scan() if touched is None else memory.scanner.rescan(touched)
            scan = with_unreadable(scan, memory, in_push, self._node, addresses)
            if not self._may_empty:
                check_emptied(scan, memory, in_push, addresses, self._here)
            report.problems = scan.problems
            report.digest = scan.manifest.digest.hex()
            self._time("scan")
            hosts = in_push.hosts(addresses, scan.manifest)
            in_push.stage(hosts, scan.manifest)
            if self._finds_owners:
                self._find_owners(hosts, scan.manifest)
        except BaseException:
            in_push.abort(hosts)
            raise
        self._time("stage")
        hosts = self._without_failed(hosts)
        plan, changed = plan_of(
            memory,
            scan.manifest,
            hosts,
            roots=in_push.roots,
            packages=in_push.packages,
            behind=list(in_push.failed),
            mode=self._mode,
            here=self._here,
        )
        plan.owners, plan.places = self._clients, list(addresses)
        report.changed_files = changed
        report.deleted_files = [path for path in changed if path not in scan.manifest]
        if report.errors:
            in_push.abort(hosts)
        elif self._has_news(hosts, plan, changed):
            self._carry_through(hosts, plan, scan)
        else:
            in_push.look(hosts, scan.manifest, memory.generation)
            self._bring_here(scan)
        return self._without_failed(hosts)

    def _find_owners(self, hosts: Sequence[HostInPush], manifest: Manifest) -> None:
        self._in_push.hear_all(hosts, manifest)
        clients = {client.uid: client for client in self._in_push.clients.values() if client}
        self._clients = [clients[uid] for uid in sorted(clients)]
        self._owners = [RemoteOwner(self._node, client) for client in self._clients]

    def _has_news(
        self, hosts: Sequence[HostInPush], plan: ReloadPlan, changed: Sequence[str]
    ) -> bool:
        """Whether files change, or processes are to change that have not done so with theirs."""
        if any(host.is_staged for host in hosts):
            return True
        if self._mode == "off":
            return bool(changed)
        if self._mode == "respawn":
            return True  # Old code may live on in some processes.
        return bool(plan.local) or any(host.uid in self._memory.left for host in hosts)

    def _without_failed(self, hosts: Sequence[HostInPush]) -> list[HostInPush]:
        """The hosts that follow; unless it is for the best effort, one that does not stops all."""
        failed = self._in_push.failed
        if not self._is_best_effort:
            self._report.errors += [
                text
                for uid, why in failed.items()
                if (text := f"{self._in_push.name(uid)}: {why}") not in self._report.errors
            ]
        return [host for host in hosts if host.uid not in failed]

    def _carry_through(self, hosts: Sequence[HostInPush], plan: ReloadPlan, scan: Scan) -> None:
        """The steps from here on are a two-phase commit. The methods below are its steps."""
        self._hosts = self._all_hosts = list(hosts)
        self._plan, self._scan, self._step, self._behind = plan, scan, "", list[Uid]()
        owners = self._owners if self._mode != "off" else ()
        if not owners and self._mode != "off" and self.prepared(ReloadOutcome()) is not Said.ALL:
            return
        switch = Coordinating(owners, plan, self)
        switch.run()
        if switch.outcome.busy:
            raise Busy(switch.outcome.busy)
        if switch.error is not None:
            raise switch.error
        if not self._report.errors and plan.generation == self._report.generation:
            self._words.audit_comes([owner.audit(plan.generation) for owner in owners])

    def entered(self, stage: CoordinatorState) -> None:
        name = _NAMES.get(stage, "")
        if name != self._step:
            if self._step:
                self._time(self._step)
            self._step = name
            if name in ("prepare", "wait", "commit"):
                self._progress.step = name
        if stage is CoordinatorState.COMMITTED:
            self._came_to(self._hosts, self._scan.manifest)
            self._memory.generation = self._report.generation = self._plan.generation

    def prepared(self, outcome: ReloadOutcome) -> Said:
        self._report.needs_respawn = outcome.respawn
        is_new = outcome.modules or outcome.respawn or any(map(self._is_new_on, self._hosts))
        if is_new or not self._report.generation:
            return Said.ALL
        # All hosts and processes have this state, though we did not know: no new generation.
        self._report.changed_files = []
        self._report.deleted_files = []
        self._came_to(self._hosts, self._scan.manifest)
        self._bring_here(self._scan)
        return Said.UNCHANGED

    def _is_new_on(self, host: HostInPush) -> bool:
        """Whether a host has not had this state. The author's own files are there before the push:
        they are no older if no process has imported them, or one that had is dead."""
        last = self._memory.last
        if host.writer != HERE or last == self._scan.manifest:
            return host.is_staged
        return last is not None or host.uid == self._node.uid

    def refused(self, outcome: ReloadOutcome) -> None:
        self._words.refused(outcome)

    def show(self) -> Vote:
        self._in_push.commit(self._hosts, self._scan.manifest, self._plan.generation)
        self._hosts = self._without_failed(self._hosts)
        if not self._report.errors:
            self._bring_here(self._scan)
        if self._report.errors:
            return Vote.NO
        if self._mode != "off":
            self._behind = [u for u in self._in_push.failed if u not in self._plan.behind]
            before = self._memory.last or Manifest(())
            self._memory.left.update(dict.fromkeys(self._behind, before))
        return Vote.YES

    def behind(self) -> Sequence[Uid]:
        return self._behind

    def patched(self, outcome: ReloadOutcome) -> None:
        self._words.switched(outcome)

    def gone(self, outcome: ReloadOutcome) -> None:
        self._report.problems += [Problem("respawn", problem) for problem in outcome.problems]

    def drop(self) -> Vote:
        self._in_push.abort(self._hosts)
        return Vote.NO

    def take_back(self) -> None:
        self._in_push.take_back(self._all_hosts)
        if why := self._here.take_back():
            self._report.errors.append(why)
        # The generation shown has a number that must not be used again, and going back another.
        number = self._plan.generation + 1
        self._memory.generation = number
        self._report.was_taken_back = True
        self._report.notes.append(
            f"the new files were on hosts already, as gen {number - 1}; without them it "
            f"is gen {number}"
        )
        self._memory.views.clear()
        self._without_failed(self._all_hosts)

    def _bring_here(self, scan: Scan) -> None:
        """Procs of this host that have a folder of their own find the files there."""
        if why := self._here.bring(scan, self._memory.scanner.contents):
            self._report.errors.append(why)

    def _came_to(self, hosts: Sequence[HostInPush], manifest: Manifest) -> None:
        memory, before = self._memory, self._memory.last
        memory.last = manifest
        if self._mode == "off":
            # The programs there go on with what they have, until a push reloads.
            for host in hosts:
                had = before if host.push is None else host.push.base
                memory.left.setdefault(host.uid, had or Manifest(()))
            return
        memory.run = manifest
        for host in hosts:
            memory.left.pop(host.uid, None)

    def _time(self, step: str) -> None:
        now = time.perf_counter()
        steps = self._report.seconds_by_step
        steps[step] = steps.get(step, 0.0) + now - self._mark
        self._mark = now
