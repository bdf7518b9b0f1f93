"""The texts of a push's report: refusals, hosts, what was switched."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

from monarch.runtime.promise import Promise
from monarch.runtime.workspace.pushing.hosts_in_push import HostInPush, HostsInPush
from monarch.runtime.workspace.pushing.local_replicas import LocalReplicas
from monarch.runtime.workspace.pushing.memory import Memory
from monarch.runtime.workspace.pushing.sharing import HERE
from monarch.runtime.workspace.reload_plan import AuditOutcome, RefusedFile, ReloadOutcome
from monarch_sync.host_report import HostReport
from monarch_sync.report import Refusal, SyncReport

_MAX_NAMED = 4


class PushWords:
    """Writes the answers of hosts and processes into the ``report`` of a push."""

    def __init__(self, memory: Memory, in_push: HostsInPush, report: SyncReport) -> None:
        self._memory = memory
        self._in_push = in_push
        self._report = report

    def refused(self, outcome: ReloadOutcome) -> None:
        """Report the reasons of a refusal by a process or host, each once."""
        by_message: dict[str, list[RefusedFile]] = {}
        for refused in outcome.refused:
            by_message.setdefault(self._in_authors_words(str(refused)), []).append(refused)
        for alike in by_message.values():
            first, ranks = alike[0], [refused.rank for refused in alike]
            message, path, traceback = map(
                self._in_authors_words, (first.message, first.path, first.traceback)
            )
            refusal = Refusal(
                message=message,
                path=path,
                line=first.line,
                column=first.column,
                text=first.text,
                traceback=traceback,
                ranks=tuple(ranks),
            )
            self._report.errors.append(f"{refusal}\n(said by {_few(ranks)})")
            self._report.refusals.append(refusal)

    def switched(self, outcome: ReloadOutcome) -> None:
        """Report that all processes have switched."""
        report = self._report
        report.modules_reloaded = [f"{module.rpartition('.')[2]}.py" for module in outcome.modules]
        report.functions_patched = outcome.functions
        report.compiles_again = sorted(outcome.compiles_again)
        report.actors_patched = outcome.actors
        report.procs_respawned = outcome.replaced
        report.actors_respawned = outcome.replaced_actors
        report.num_procs = outcome.num_procs
        report.notes += outcome.notes
        report.warnings = list(dict.fromkeys(map(self._in_authors_words, outcome.warnings)))

    def audit_comes(self, audits: Sequence[Promise[AuditOutcome]]) -> None:
        """When all ``audits`` are finished, write into the report which old code still runs."""
        report, whole, num_missing = self._report, AuditOutcome(), len(audits)
        lock = threading.Lock()
        done: Promise[None] = Promise()

        def add(audit: Promise[AuditOutcome]) -> None:
            nonlocal num_missing
            with lock:
                whole.add(audit.value)
                num_missing -= 1
                if num_missing:
                    return
            words = self._in_authors_words
            report.stale = [words(text) for text in whole.lines(whole.stale)]
            report.kept = [words(text) for text in whole.lines(whole.kept)]
            report.audit_seconds = whole.seconds
            done.set(None)

        report.audit_comes(done.wait)
        for audit in audits:
            audit.on_set(functools.partial(add, audit))
        if not audits:
            done.set(None)

    def of_host(self, host: HostInPush, local_replicas: LocalReplicas) -> HostReport:
        """Return the report on a host. If it is the author's own host, the changes in the replicas
        there are added.
        """
        push = host.push
        if push is None:
            is_here = host.writer == HERE and host.uid not in self._memory.host_names
            report = HostReport("this host" if is_here else self._in_push.name(host.uid))
            if is_here:
                local_replicas.count_into(report)
            return report
        report = HostReport(self._in_push.name(host.uid), bytes_sent=push.bytes_sent)
        if not self._report.errors:
            push.tell(report)
            report.kept = self._in_push.kept.get(host.uid, [])
        return report

    def _in_authors_words(self, text: str) -> str:
        """Return a text with paths on hosts replaced by the author's paths."""
        for root in set(self._in_push.roots.values()):
            text = text.replace(f"{root}/", "")
        for folder in self._memory.workspace.folders:
            text = text.replace(f"{folder.local}/", f"{folder.remote}/" if folder.remote else "")
        return text


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
