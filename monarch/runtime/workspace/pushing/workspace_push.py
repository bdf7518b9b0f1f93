"""A push to all hosts and all processes, from the author's side: its steps in their order.

Scan, stage on every host, prepare in every process, and have each owner of processes switch: it
halts its ranks between the same two messages, commits the files of its hosts, changes the code, and
lets all go on. Until the commit nothing visible has changed anywhere; a refusal by any process,
until the last rank has changed, puts everything back for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from monarch.core.code_switch.table import SwitchEvent, Vote
from monarch.runtime.node import Node
from monarch.runtime.workspace.code_switch.host_files import HostFiles
from monarch.runtime.workspace.code_switch.proposing import Owner, Proposing, Purpose
from monarch.runtime.workspace.code_switch.remote_owner import RemoteOwner
from monarch.runtime.workspace.pushing.first_look import FirstLook
from monarch.runtime.workspace.pushing.host_states import check_emptied, with_unreadable
from monarch.runtime.workspace.pushing.hosts_in_push import Busy, HostInPush, HostsInPush, Stale
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.planning import plan_of
from monarch.runtime.workspace.pushing.push_words import PushWords
from monarch.runtime.workspace.pushing.sharing import HERE
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan, StagedFiles, Switched
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.errors import MovedUnderfoot
from monarch_sync.host_report import HostReport
from monarch_sync.progress import progress
from monarch_sync.report import Problem, SyncReport
from monarch_sync.scanning.scanner import Scan
from monarch_sync.tree.manifest import Manifest

_MAX_RESCANS = 3
_BUSY_SECONDS = 30.0
_MAX_PAUSE_SECONDS = 0.5


class WorkspacePush(Purpose):
    """One push, and the results that its steps share."""

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
        #: Folders of this host, ``local_roots``, that get the files too.
        self._local_replicas = LocalReplicas(memory.workspace, local_roots)
        self._node = node
        self._in_push = HostsInPush(memory, node)
        #: Whether the owners are the clients that the hosts name, because none were given.
        self._finds_owners = owners is None
        #: The owners of the procs that change their code.
        self.owners: Sequence[Owner] = owners or ()
        #: How code changes: "auto", "patch", "respawn", or "off" for files only.
        self._mode = mode
        #: Whether hosts that cannot follow are left behind, instead of stopping the push.
        self._is_best_effort = best_effort
        #: Why hosts are known not to answer. They are not asked, and are left behind.
        self._silent = dict(silent or {})
        #: Waits until the author's files may be looked at again.
        self._settle = settle
        #: Whether a folder that has become empty is emptied on the hosts.
        self._may_empty = may_empty
        self.report = SyncReport()
        #: Owners that have switched although another one could not.
        self.ahead: list[Uid] = []
        #: The generation before the push, to which these owners must return.
        self.base = 0
        self._words = PushWords(memory, self._in_push, self.report)
        #: When the present step began, on ``time.perf_counter``.
        self._mark = time.perf_counter()
        self._progress = progress()

    def run(
        self,
        addresses: Sequence[ProcAddress],
        touched: Iterable[Path] | None,
        max_rescans: int = _MAX_RESCANS,
    ) -> SyncReport:
        """Push, and repeat it if another author was pushing; return the report."""
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
                    self.report.errors.append(
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
        report = self.report
        report.hosts = [self._words.of_host(host, self._local_replicas) for host in hosts]
        report.changed_files = sorted({*report.changed_files, *self._local_replicas.files})
        report.notes += self._local_replicas.notes
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
        memory, report, in_push = self._memory, self.report, self._in_push
        report.errors.clear()
        report.refusals.clear()
        report.was_taken_back = False
        in_push.failed.clear()
        in_push.failed.update(self._silent)
        in_push.clients.clear()
        in_push.meet(addresses)
        report.generation = self.base = memory.generation
        first = FirstLook(memory, in_push, addresses if touched is None else ())
        hosts = first.hosts
        try:
            scan = first.scan() if touched is None else memory.scanner.rescan(touched)
            scan = with_unreadable(scan, memory, in_push, self._node, addresses)
            if not self._may_empty:
                check_emptied(scan, memory, in_push, addresses, self._local_replicas)
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
            local_replicas=self._local_replicas,
        )
        plan.staged = self._staged(hosts, scan.manifest)
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
        self.owners = [RemoteOwner(self._node, clients[uid]) for uid in sorted(clients)]

    def _staged(self, hosts: Sequence[HostInPush], manifest: Manifest) -> StagedFiles:
        """Return the staged files with the owner that is responsible for each host. If hosts share
        a folder, one of their owners is responsible for all of these hosts.
        """
        memory, in_push = self._memory, self._in_push
        owners = {owner.uid for owner in self.owners} if self._mode != "off" else set()
        is_own = owners == {self._node.uid}
        sees_to: dict[Uid, Uid] = {}
        for host in hosts:
            client = in_push.clients.get(host.uid)
            owner = self._node.uid if is_own else client.uid if client is not None else ""
            writer = host.writer or host.uid
            if owner in owners and not sees_to.get(writer):
                sees_to[writer] = owner
        looking = [host.uid for host in in_push.sharing(hosts, manifest)]
        changes = memory.sharing.changes(manifest, memory.last, looking) if looking else b""
        return StagedFiles(
            owners={host.uid: sees_to.get(host.writer or host.uid, "") for host in hosts},
            places=[host.address for host in hosts],
            num_files={
                host.uid: len(host.push.staged.files)
                for host in hosts
                if host.push is not None and host.push.staged is not None
            },
            sharing=looking,
            shared=changes,
            num_shared=len(manifest),
            best_effort=self._is_best_effort,
        )

    def _has_news(
        self, hosts: Sequence[HostInPush], plan: ReloadPlan, changed: Sequence[str]
    ) -> bool:
        """Return whether the push changes anything: files on a host, or code in a process. Code may
        have to change although the files of its host are new already.
        """
        if any(host.is_staged for host in hosts):
            return True
        if self._mode == "off":
            return bool(changed)
        if self._mode == "respawn":
            return True  # Old code may live on in some processes.
        return bool(plan.local) or any(host.uid in self._memory.outdated for host in hosts)

    def _without_failed(self, hosts: Sequence[HostInPush]) -> list[HostInPush]:
        """Return the hosts that have not failed. Without best effort, each failure becomes an error
        of the report.
        """
        failed = self._in_push.failed
        if not self._is_best_effort:
            self.report.errors += [
                text
                for uid, why in failed.items()
                if (text := f"{self._in_push.name(uid)}: {why}") not in self.report.errors
            ]
        return [host for host in hosts if host.uid not in failed]

    def _carry_through(self, hosts: Sequence[HostInPush], plan: ReloadPlan, scan: Scan) -> None:
        """Prepare, switch and finish the push, after the hosts have staged the files.

        This is a two-phase commit, and the methods below are its steps.
        """
        #: The hosts that take part; ``_hosts`` without those that have failed since.
        self._hosts = self._all_hosts = list(hosts)
        self._plan, self._scan = plan, scan
        #: What all owners have switched; whether hosts have shown files that they took back.
        self._outcome, self._was_shown = ReloadOutcome(), False
        #: The owners that see to their hosts' files themselves; "" is the author.
        self._ordered = {""}
        owners = self.owners if self._mode != "off" else ()
        self._is_owned = bool(owners)
        self._unowned = HostFiles(self._node, plan, "", own_files=None if owners else self)
        nobody_runs = not owners and self._mode != "off"
        if nobody_runs and self.prepared(ReloadOutcome()) is not SwitchEvent.ALL:
            return
        if owners:
            self._progress.step = "prepare"
        proposing = Proposing(owners, plan, self)
        if proposing.run():
            self._words.switched(self._outcome)
            self._came_to(self._hosts, scan.manifest)
            self._memory.generation = self.report.generation = plan.generation
        elif self._was_shown:
            self._count_on()
        if proposing.outcome.busy:
            raise Busy(proposing.outcome.busy)
        if proposing.error is not None:
            raise proposing.error
        if not self.report.errors and plan.generation == self.report.generation:
            self._words.audit_comes([owner.audit(plan.generation) for owner in owners])

    def prepared(self, outcome: ReloadOutcome) -> SwitchEvent:
        self._end_prepare()
        self.report.needs_respawn = outcome.respawn
        is_new = outcome.modules or outcome.respawn or any(map(self._is_new_on, self._hosts))
        if is_new or not self.report.generation:
            return SwitchEvent.ALL
        # All hosts and processes have this state already, which we did not know.
        self.report.changed_files = []
        self.report.deleted_files = []
        self._came_to(self._hosts, self._scan.manifest)
        self._bring_here(self._scan)
        return SwitchEvent.UNCHANGED

    def _is_new_on(self, host: HostInPush) -> bool:
        """Return whether this push brings the host a new state.

        If the host runs the author's own files, they were there before the push. The state then
        counts as new only if it is not the first that this author pushes, or if the author's own
        process is on that host.
        """
        last = self._memory.last
        if host.writer != HERE or last == self._scan.manifest:
            return host.is_staged
        return last is not None or host.uid == self._node.uid

    def refused(self, outcome: ReloadOutcome) -> None:
        self._end_prepare()
        self._words.refused(outcome)

    def _end_prepare(self) -> None:
        if self._is_owned and "prepare" not in self.report.seconds_by_step:
            self._time("prepare")

    def switched(self, owner: Uid, switched: Switched) -> None:
        self._ordered.add(owner)
        self._add_to(switched)
        self._was_shown |= switched.is_taken_back
        self._outcome.add(switched.outcome)
        steps = self.report.seconds_by_step
        for step, seconds in switched.seconds.items():
            steps[step] = steps.get(step, 0.0) + seconds
        self._mark = time.perf_counter()
        self.report.problems += [
            Problem("respawn", problem) for problem in switched.outcome.problems
        ]

    def show_unowned(self) -> Vote:
        if not self._is_owned:
            self._progress.step = "commit"
        vote = self._unowned.show()
        self._add_to(self._unowned)
        if self._unowned.hosts or not self._is_owned:
            self._time("commit")
        return vote

    def _add_to(self, files: HostFiles | Switched) -> None:
        """Note which hosts show the files, and which are left behind."""
        self._in_push.have_shown(self._all_hosts, self._scan.manifest, files)
        self._hosts = self._without_failed(self._hosts)
        is_back = isinstance(files, Switched) and not files.is_done
        if self._mode != "off" and self._is_best_effort and not is_back:
            last = self._memory.last or Manifest(())
            self._memory.outdated.update(dict.fromkeys(files.failed, last))

    def undo_unowned(self) -> None:
        if self._unowned.has_shown and (self._unowned.hosts or not self._is_owned):
            self._unowned.take_back()
            self._add_to(self._unowned)
            self._was_shown = True
        elif not self._unowned.has_shown:
            self._ordered.discard("")
        # Owners that were told to switch have restored the files of their hosts.
        self._in_push.abort(
            [host for host in self._all_hosts if self.owner_of(host.uid) not in self._ordered]
        )

    def owner_of(self, host: Uid) -> Uid:
        """Return the owner that is responsible for the files of a host; "" is the author."""
        staged = self._plan.staged
        return staged.owners.get(host, "") if staged is not None else ""

    def lost(self, owner: Uid) -> None:
        HostFiles(self._node, self._plan, owner).take_back(all_of_them=True)
        self._was_shown = True

    def bring_back(self, owner: Uid) -> None:
        self.ahead.append(owner)

    def show(self) -> bool:
        """Show the files in the local replicas, which procs on this host use; return whether that
        succeeded.
        """
        self._bring_here(self._scan)
        return not self.report.errors

    def take_back(self) -> None:
        if why := self._local_replicas.take_back():
            self.report.errors.append(why)

    def _count_on(self) -> None:
        """Give the restored state a new generation number. The number of the push that failed
        cannot be used again, because hosts had shown its files under that number.
        """
        number = self._plan.generation + 1
        self._memory.generation = number
        self.report.was_taken_back = True
        self.report.notes.append(
            f"the new files were on hosts already, as gen {number - 1}; without them it "
            f"is gen {number}"
        )
        self._memory.views.clear()
        self._without_failed(self._all_hosts)

    def _bring_here(self, scan: Scan) -> None:
        """Write the state in ``scan`` to the replicas on this machine; a failure is added to the
        report's errors.
        """
        if why := self._local_replicas.bring(scan, self._memory.scanner.contents):
            self.report.errors.append(why)

    def _came_to(self, hosts: Sequence[HostInPush], manifest: Manifest) -> None:
        memory, last = self._memory, self._memory.last
        memory.last = manifest
        if self._mode == "off":
            # The programs there keep their old code until a push reloads it.
            for host in hosts:
                had = last if host.push is None else host.push.base
                memory.outdated.setdefault(host.uid, had or Manifest(()))
            return
        memory.run = manifest
        for host in hosts:
            memory.outdated.pop(host.uid, None)

    def _time(self, step: str) -> None:
        now = time.perf_counter()
        steps = self.report.seconds_by_step
        steps[step] = steps.get(step, 0.0) + now - self._mark
        self._mark = now
