"""A push, from the author's side, over all hosts and all processes: the steps in their order.

Scan, stage on every host, prepare in every process, commit the files, switch the code. Until the
commit nothing visible has changed anywhere, and a refusal by anybody ends the push for all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from monarch.errors import MonarchError
from monarch.runtime.answers import Outcome
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import FileChange, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid, machine_id
from monarch.wire.message import Inspect, Sync
from monarch_sync.disk import Content
from monarch_sync.entry import from_wire
from monarch_sync.errors import MovedUnderfoot, PushRefused, SyncError
from monarch_sync.manifest import Manifest
from monarch_sync.messages import Abort, Commit, Message, decode, encode
from monarch_sync.push import HostView, Outgoing, Push
from monarch_sync.report import HostReport, SyncReport
from monarch_sync.scanner import Scanner
from monarch_sync.workspace import Workspace

__all__ = ["Attempt", "Memory", "Owner"]

_MAX_RESCANS = 3


class Owner(Protocol):
    """Who owns the procs on the hosts: this process, or a client elsewhere. Calls block."""

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome: ...

    def switch(self, generation: int) -> ReloadOutcome: ...

    def revert(self, generation: int) -> None: ...


class _Host(NamedTuple):
    """A host in a push. ``push`` is ``None`` where the files are the author's own."""

    address: ProcAddress
    push: Push | None


class Memory:
    """What an author remembers of one workspace from one push to the next.

    ``views`` is what each host has, ``found`` the digest that a host told of itself; ``last`` is
    the state that everybody runs, ``generation`` its number.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        self.views: dict[Uid, HostView] = {}
        self.host_names: dict[Uid, str] = {}
        self.found: dict[Uid, str] = {}
        self.last: Manifest | None = None
        self.generation = 0


class _Stale(MonarchError):
    """A host has a later generation than the one that was proposed."""


class Attempt:
    """One push. Its steps share what they find out."""

    def __init__(self, memory: Memory, node: Node, owners: Sequence[Owner], mode: str) -> None:
        self._memory = memory
        self._node = node
        self._owners = owners
        self._mode = mode
        self._report = SyncReport()
        self._roots: dict[Uid, str] = {}
        self._kept: dict[Uid, list[str]] = {}
        self._has_committed = False
        self._mark = time.perf_counter()

    def run(self, addresses: Sequence[ProcAddress], touched: Iterable[Path] | None) -> SyncReport:
        started = time.perf_counter()
        memory, report = self._memory, self._report
        scanner = memory.scanner
        for attempt in range(_MAX_RESCANS):
            self._meet(addresses)
            report.generation = memory.generation
            report.errors.clear()
            scan = scanner.scan() if touched is None or attempt else scanner.rescan(touched)
            self._time("scan")
            hosts = self._hosts(addresses, scan.manifest)
            try:
                self._stage(hosts, scan.manifest)
                break
            except (MovedUnderfoot, _Stale):
                # A file changed meanwhile, or another author was here: look again.
                self._abort(hosts)
                memory.views.clear()
                if attempt == _MAX_RESCANS - 1:
                    raise
        report.problems = scan.problems
        report.digest = scan.manifest.digest.hex()
        self._time("stage")
        plan = self._plan(hosts, scan.manifest)
        if not report.errors and self._is_anything_new(hosts, plan):
            self._carry_through(hosts, plan, scan.manifest)
        elif report.errors:
            self._abort(hosts)
        report.hosts = [self._host_report(host) for host in hosts]
        report.seconds = time.perf_counter() - started
        return report

    def _meet(self, addresses: Sequence[ProcAddress]) -> None:
        """Ask hosts that we have not pushed to yet which generation they have."""
        views = self._memory.views
        new = [a for a in addresses if a.uid not in views and a.uid != self._node.uid]
        asked = [
            (a, self._node.request(a, lambda port: Inspect(port, self._node.uid))) for a in new
        ]
        for address, answer in asked:
            body = self._body(address, answer)
            view = views[address.uid] = HostView()
            view.generation = int(body["generation"])
            self._memory.host_names[address.uid] = str(body["host"])
            self._memory.found[address.uid] = str(body["digest"])
        generations = [view.generation for view in views.values()]
        self._memory.generation = max([self._memory.generation, *generations])

    def _hosts(self, addresses: Sequence[ProcAddress], manifest: Manifest) -> list[_Host]:
        memory = self._memory
        generation = memory.generation + 1
        hosts = []
        for address in addresses:
            if address.uid == self._node.uid:
                hosts.append(_Host(address, None))
                continue
            view = memory.views[address.uid]
            contents = memory.scanner.contents
            push = Push(memory.workspace, manifest, view, generation, contents)
            hosts.append(_Host(address, push))
        return hosts

    def _stage(
        self, hosts: Sequence[_Host], manifest: Manifest, *, brings_content: bool = True
    ) -> None:
        """Have every host get ready; all of them at once, round by round."""
        report = self._report
        going: list[tuple[_Host, Outgoing]] = []
        for host in hosts:
            if host.push is not None and not self._has_it(host.address.uid, manifest):
                first = host.push.first(brings_content=brings_content)
                going.append((host, first))
        while going:
            asked = [(host, self._send(host, out.message, out.blobs)) for host, out in going]
            going = []
            for host, answer in asked:
                assert host.push is not None
                body = self._body(host.address, answer)
                self._roots[host.address.uid] = str(body.get("root", ""))
                try:
                    step = host.push.receive(decode(body["reply"]))
                except PushRefused as error:
                    if error.code == "stale":
                        raise _Stale(error.reason) from None
                    report.errors.append(f"{self._name(host)}: {error}")
                else:
                    if isinstance(step, Outgoing):
                        going.append((host, step))

    def _has_it(self, uid: Uid, manifest: Manifest) -> bool:
        """Whether a host has this state already, pushed by us or by another author."""
        view = self._memory.views[uid]
        if view.manifest is None and self._memory.found.pop(uid, "") == manifest.digest.hex():
            view.manifest = manifest
        return view.manifest == manifest

    def _send(
        self, host: _Host, message: Message, blobs: Sequence[Content] = ()
    ) -> Promise[Outcome]:
        folders = tuple(folder.remote for folder in self._memory.workspace.folders)
        data = encode(message)
        if host.push is not None:
            host.push.bytes_sent += len(data)
        sender = self._node.uid
        return self._node.request(
            host.address, lambda port: Sync(port, sender, folders), data, blobs
        )

    def _body(self, address: ProcAddress, answer: Promise[Outcome]) -> dict[str, Any]:
        answer.wait()
        if answer.value.error:
            where = address.urls[0] if address.urls else address.uid
            raise MonarchError(f"the host at {where} did not answer a push: {answer.value.error}")
        return answer.value.body

    def _plan(self, hosts: Sequence[_Host], manifest: Manifest) -> ReloadPlan:
        """Which files change, as the processes on each host will see them."""
        memory = self._memory
        plan = ReloadPlan(memory.generation + 1, manifest.digest.hex(), self._mode)
        changed: dict[str, None] = {}
        for host in hosts:
            if host.push is None or host.push.staged is None:
                continue
            root = self._roots[host.address.uid]
            uid = host.address.uid
            plan.hosts[uid] = []
            for raw_path, raw_place in host.push.files():
                path, place = from_wire(raw_path), from_wire(raw_place)
                place = place and os.path.join(root, place)
                plan.hosts[uid].append(FileChange(os.path.join(root, path), place))
                changed[path] = None
            plan.paths[uid] = [
                os.path.join(root, folder.remote) if folder.remote else root
                for folder in memory.workspace.folders
            ]
        plan.author_machine = machine_id()
        plan.local_paths = [str(folder.local) for folder in memory.workspace.folders]
        own = self._own_changes(manifest)
        plan.local = [
            FileChange(str(local), str(local) if path in manifest else "")
            for path in own
            for local in list(memory.workspace.locate(path))[:1]
        ]
        self._report.changed_files = sorted({*changed, *own} if memory.last else changed or own)
        return plan

    def _own_changes(self, manifest: Manifest) -> list[str]:
        """Python files that changed here since the last push; at the first, all there are."""
        last = self._memory.last
        if last is None:
            return [entry.path for entry in manifest if entry.path.endswith(".py")]
        entries = (
            (path, manifest.get(path) or last.get(path)) for path in manifest.changed_paths(last)
        )
        return sorted(path for path, entry in entries if entry is not None and entry.is_file)

    def _is_anything_new(self, hosts: Sequence[_Host], plan: ReloadPlan) -> bool:
        return _are_staged(hosts) or bool(plan.local)

    def _carry_through(self, hosts: Sequence[_Host], plan: ReloadPlan, manifest: Manifest) -> None:
        try:
            self._take_the_steps(hosts, plan, manifest)
        except BaseException:
            # Ctrl-C, or somebody lost half-way: all go back, as far as they still answer.
            for owner in self._owners:
                with contextlib.suppress(MonarchError):
                    owner.revert(plan.generation)
            if self._has_committed:
                self._restore(hosts)
            else:
                self._abort(hosts)
            self._memory.views.clear()
            raise

    def _take_the_steps(self, hosts: Sequence[_Host], plan: ReloadPlan, manifest: Manifest) -> None:
        report = self._report
        if self._mode != "off":
            prepared = self._ask(lambda owner: owner.prepare(plan))
            self._time("prepare")
            if prepared.refused:
                self._give_up(hosts, plan, prepared)
                return
            report.needs_respawn = prepared.respawn
            if report.generation and not (prepared.modules or _are_staged(hosts)):
                self._find_nothing_new(plan, manifest)
                return
        self._commit(hosts)
        self._time("commit")
        if self._mode != "off":
            switched = self._ask(lambda owner: owner.switch(plan.generation))
            self._time("switch")
            if switched.refused:
                self._give_up(hosts, plan, switched)
                self._restore(hosts)
                return
            report.modules_reloaded = _file_names(switched.modules)
            report.functions_patched = switched.functions
            report.actors_patched = switched.actors
            report.num_procs = switched.num_procs
        self._memory.generation = report.generation = plan.generation
        self._memory.last = manifest

    def _find_nothing_new(self, plan: ReloadPlan, manifest: Manifest) -> None:
        """All hosts and processes have this state, though we did not know: no new generation."""
        for owner in self._owners:
            owner.revert(plan.generation)
        self._report.changed_files = []
        self._memory.last = manifest

    def _ask(self, action: Any) -> ReloadOutcome:
        outcome = ReloadOutcome()
        for owner in self._owners:
            outcome.add(action(owner))
        return outcome

    def _commit(self, hosts: Sequence[_Host]) -> None:
        self._has_committed = True
        staged = [host for host in hosts if host.push is not None and host.push.staged]
        asked = [
            (host, self._send(host, Commit(host.push.generation)))
            for host in staged
            if host.push is not None
        ]
        for host, answer in asked:
            assert host.push is not None
            body = self._body(host.address, answer)
            self._kept[host.address.uid] = host.push.committed(decode(body["reply"]))

    def _give_up(self, hosts: Sequence[_Host], plan: ReloadPlan, outcome: ReloadOutcome) -> None:
        """Somebody said no: everything is put back, and everybody's reason is told once."""
        for owner in self._owners:
            owner.revert(plan.generation)
        self._abort(hosts)
        by_text: dict[str, list[str]] = {}
        for refused in outcome.refused:
            by_text.setdefault(self._in_authors_words(str(refused)), []).append(refused.rank)
        for text, ranks in by_text.items():
            self._report.errors.append(f"{text}\n(said by {_few(ranks)})")

    def _in_authors_words(self, text: str) -> str:
        """Paths on hosts, as the author knows them."""
        for root in set(self._roots.values()):
            text = text.replace(f"{root}/", "")
        for folder in self._memory.workspace.folders:
            text = text.replace(f"{folder.local}/", f"{folder.remote}/" if folder.remote else "")
        return text

    def _restore(self, hosts: Sequence[_Host]) -> None:
        """Files were committed, and then a rank could not switch: put the old files back.

        The old contents are in the hosts' stores, so this moves no bytes.
        """
        last = self._memory.last
        if last is None:
            return
        self._memory.generation += 1
        for host in hosts:
            # One by one: a host that is lost must not keep the others from going back.
            with contextlib.suppress(MonarchError, SyncError):
                back = self._hosts([host.address], last)
                self._stage(back, last, brings_content=False)
                self._commit(back)
        self._memory.generation += 1

    def _abort(self, hosts: Sequence[_Host]) -> None:
        asked = [
            self._send(host, Abort(host.push.generation))
            for host in hosts
            if host.push is not None and host.push.staged
        ]
        for answer in asked:
            answer.wait()

    def _host_report(self, host: _Host) -> HostReport:
        push, uid = host.push, host.address.uid
        if push is None:
            return HostReport("this host")
        report = HostReport(self._name(host), bytes_sent=push.bytes_sent)
        staged = push.staged
        if staged is not None and not self._report.errors:
            report.num_written, report.num_moved = staged.num_written, staged.num_moved
            report.num_deleted, report.num_unchanged = staged.num_deleted, staged.num_unchanged
            report.kept = self._kept.get(uid, [])
        return report

    def _name(self, host: _Host) -> str:
        return self._memory.host_names.get(host.address.uid, host.address.uid)

    def _time(self, step: str) -> None:
        now = time.perf_counter()
        steps = self._report.seconds_by_step
        steps[step] = steps.get(step, 0.0) + now - self._mark
        self._mark = now


def _are_staged(hosts: Sequence[_Host]) -> bool:
    return any(host.push is not None and host.push.staged for host in hosts)


def _file_names(modules: Sequence[str]) -> list[str]:
    return [f"{module.rpartition('.')[2]}.py" for module in modules]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
