"""Pushes from a command; the program that the hosts serve switches its own procs."""

from __future__ import annotations

import ast
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from monarch.cli.large_files import LargeFiles
from monarch.cli.project import may_come_up, no_allocation, noted_job
from monarch.cli.sync.output import Output
from monarch.cli.sync.timeline import like_now, others_line, timeline
from monarch.cli.terminal.interrupts import asked_to_end, at_once_from_here, push_taken_back
from monarch.errors import JobError
from monarch.job import JobTrait
from monarch.runtime.answers import Response, collect
from monarch.runtime.client_agent import ClientAgent, client
from monarch.runtime.hosts.asking import COMING_UP_SECONDS, inspect_hosts
from monarch.runtime.hosts.bulletins import post
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.pushing.rollback import roll_back
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import HostState, Inspect, InspectProc, ProcDown
from monarch_sync import SyncReport, Workspace
from monarch_sync.progress import Progress, followed_by
from monarch_sync.words import counted, printable

WHOLE_HISTORY = 1000  # generations; hosts remember fewer

_ANSWER_SECONDS = 1.0
_LOOKING = ("", "scan")  # steps of a push in which no host has been asked for anything
_EACH_SECONDS = 0.005  # more, for each that is asked
_MAX_ASKED = 64  # hosts, while a push goes on
_SETTLE_SECONDS = 2.0  # between the commits of two hosts lie milliseconds, as a rule
_LOOK_SECONDS = 0.02
_MAX_PARSED = 20  # files that nothing has loaded: as many as a person edits at once
_MAX_PARSED_BYTES = 1 << 20


def pusher_here(*, partly: bool = False) -> Pusher:
    """Return a pusher as `find_pusher` does. Raises ``JobError`` if there is no allocation."""
    pusher = find_pusher(partly=partly)
    if pusher is None:
        raise no_allocation()
    return pusher


def find_pusher(*, partly: bool) -> Pusher | None:
    """Return the pusher for this folder's running allocation, or ``None``.

    With ``partly`` it is enough that one host answers.
    """
    job = noted_job()
    if job is None:
        return None
    pusher = Pusher(job)
    return pusher if job.is_running() or (partly and pusher.answering()) else None


class PushOptions(NamedTuple):
    """How a push is made.

    ``large`` asks about large files. With ``best_effort`` it goes on without hosts that cannot
    follow. With ``allow_empty`` a folder that is empty here may be emptied on the hosts. ``env``
    brings the packages of the lock file along.
    """

    large: LargeFiles
    best_effort: bool = False
    allow_empty: bool = False
    env: bool = False


class Pusher:
    """Pushes to one allocation.

    Calls block. They raise ``MonarchError`` if a host fails, and ``SyncError`` if a push cannot be
    made.
    """

    def __init__(self, job: JobTrait, *, coming_up_seconds: float = COMING_UP_SECONDS) -> None:
        self.job = job
        #: How long a host may take to start before its silence is an error.
        self._coming_up_seconds = coming_up_seconds
        self._agent: ClientAgent = client()
        #: The host agents that were found, by URL.
        self._addresses: dict[str, ProcAddress] = {}
        #: The processes of host agents that are watched, by the agent's uid.
        self._pids: dict[Uid, int] = {}
        #: How many processes were lost so far; the I/O thread counts.
        self._num_lost = 0
        #: The same number when the last push began, if all hosts followed it; else -1.
        self._num_lost_when_all_followed = -1
        self._agent.node.peer_down.on_down.append(self._lose)
        #: Hosts' names for people, by URL.
        self._names = job.names_by_url()
        #: Whether it reports what a push waits for.
        self.tells_waits = True
        #: Whether Ctrl-C ends the program at once while a push only looks at the workspace.
        self.ends_at_once = True
        #: Why hosts gave no answer the last time, by URL.
        self.silent: dict[str, str] = {}

    def push(
        self,
        workspace: Workspace,
        touched: Iterable[Path] | None,
        output: Output,
        options: PushOptions,
    ) -> SyncReport:
        """Push a workspace to all hosts, and return the report, whose audit may be under way.

        Only ``touched`` paths may have changed (``None``: any). The hosts are asked first whether
        they run, unless all have followed the last push, and no host was lost since.
        """
        silent: dict[Uid, str] = {}
        num_lost = self._num_lost
        if num_lost != self._num_lost_when_all_followed:
            _, silent = self._split(best_effort=options.best_effort)
        self._num_lost_when_all_followed = -1
        session = session_of(self._agent)
        addresses = list(self.addresses().values())

        def push() -> SyncReport:
            with (
                self._followed(output, addresses) as progress,
                push_taken_back(lambda: self.ends_at_once and progress.step in _LOOKING),
            ):
                return session.push(
                    addresses,
                    workspace,
                    is_visit=True,
                    touched=touched,
                    best_effort=options.best_effort,
                    silent=silent,
                    names=self._names_by_uid(),
                    env=options.env,
                    allow_empty=options.allow_empty,
                )

        report = options.large.pushing(workspace, push)
        if report.ok:
            if not silent and not any(host.error for host in report.hosts):
                self._num_lost_when_all_followed = num_lost
            report.notes += _faults_in(report.changed_files, workspace)
        return report

    def roll_back(
        self, workspace: Workspace, generation: int, output: Output, *, best_effort: bool = False
    ) -> SyncReport:
        """Roll all hosts back to ``generation``, and return the report.

        With ``best_effort``, hosts that do not answer are left out.
        """
        states, silent = self._split(best_effort=best_effort)
        past = self.past(states)
        addresses = list(self.addresses().values())
        with self._followed(output, addresses), push_taken_back(lambda: False):
            names = self._names_by_uid()
            return roll_back(
                past,
                self._agent.node,
                workspace,
                generation,
                addresses,
                best_effort=best_effort,
                silent=silent,
                names=names,
            )

    def post(self, bulletin: Bulletin) -> None:
        """Send a bulletin to all hosts."""
        post(self._agent.node, self.addresses().values(), bulletin)

    def past(self, states: Mapping[str, HostState] | None = None) -> HostHistory:
        """Return the generations that hosts remember; ``states`` are their states, if known."""
        addresses = self.addresses()
        states = states or self.inspect()
        names = {state.host: url for url, state in states.items()}
        if len(names) < len(states):
            names = {url: url for url in states}
        return HostHistory(self._agent.node, {name: addresses[url] for name, url in names.items()})

    def like_now(self, responses: Mapping[str, Response[HostState]]) -> dict[str, frozenset[int]]:
        """Return for each host, by URL, the generations whose state equals its current one.

        Only hosts with procs are asked.
        """
        addresses = self.addresses()
        hosts = {url: addresses[url] for url, state in states_of(responses).items() if state.procs}
        histories = HostHistory(self._agent.node, hosts).histories(WHOLE_HISTORY)
        return {url: like_now(history) for url, history in histories.items()}

    def made_by_others(self, first: int, last: int) -> str:
        """Describe who made the generations after ``first`` and before ``last``.

        One host may have such a generation before the other hosts, so this waits a moment until all
        have it.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        generations = range(first + 1, last)
        while True:
            past = self.past(self.answering())
            rows = timeline(past.histories(WHOLE_HISTORY))
            num_having = [len(row.hosts) for row in rows if row.entry.generation in generations]
            if min(num_having, default=0) == len(past.hosts) or time.monotonic() > deadline:
                return others_line(rows, generations, len(past.hosts))
            time.sleep(_LOOK_SECONDS)

    def inspect(self) -> dict[str, HostState]:
        """Return the state of each host, by URL. Raises ``JobError`` if a host does not answer."""
        responses = self.ask()
        for url, response in responses.items():
            if response.error:
                raise JobError(
                    f"{self.name_of(url)}: {response.error}.\n"
                    "`monarch sync --best-effort` goes on without it, `monarch apply` starts anew"
                )
        return states_of(responses)

    def answering(self) -> dict[str, HostState]:
        """Return the state of each host that answers, by URL."""
        return states_of(self.ask())

    def _split(self, *, best_effort: bool) -> tuple[dict[str, HostState], dict[Uid, str]]:
        """Return the hosts that answer, and by uid why others do not.

        All must answer, unless ``best_effort``.
        """
        if not best_effort:
            return self.inspect(), {}
        responses = self.ask()
        by_url = self.addresses()
        silent = {
            by_url[url].uid: response.error for url, response in responses.items() if response.error
        }
        return states_of(responses), silent

    def name_of(self, url: str) -> str:
        """Return a host's name for people, also of one that no longer answers."""
        return self._names.get(url, url)

    def _names_by_uid(self) -> dict[Uid, str]:
        return {address.uid: self.name_of(url) for url, address in self.addresses().items()}

    def addresses(self) -> dict[str, ProcAddress]:
        """Return the host agents, by URL."""
        for url in self.job.urls():
            if url not in self._addresses:
                self._addresses[url] = self.job.visit(url)
        return self._addresses

    def generations(self) -> str:
        """Describe which generation the hosts have, as far as they answer."""
        responses = self.ask()
        states = states_of(responses)
        numbers = sorted({state.generation for state in states.values()})
        num_silent = len(responses) - len(states)
        if len(numbers) == 1 and not num_silent:
            label = f"gen {numbers[0]}" if numbers[0] else "no generation yet"
            hosts = "the host has" if len(responses) == 1 else f"all {len(responses)} hosts have"
            return f"{hosts} {label}"
        silent = f"; {counted(num_silent, 'host')} gave no answer" if num_silent else ""
        listing = ", ".join(map(str, numbers)) or "unknown"
        return f"hosts have gen {listing}{silent}: `monarch sync` brings them in line"

    def ask(self) -> dict[str, Response[HostState]]:
        """Return the state of each host, by URL, or the ``error`` of one that does not answer."""
        addresses = self.addresses()
        responses = inspect_hosts(
            self._agent.node,
            addresses,
            silent=self.silent,
            may_come_up=may_come_up(self.job),
            coming_up_seconds=self._coming_up_seconds,
        )
        for url, response in responses.items():
            if response.error:
                # Another process may be started at this URL.
                self._addresses.pop(url, None)
            else:
                self._names[url] = response.answer.host
                self._watch(addresses[url], response.answer)
        self.silent = {url: response.error for url, response in responses.items() if response.error}
        return responses

    def silence(self) -> list[str]:
        """Return which hosts did not answer the last time, and why."""
        return [f"{self.name_of(url)}: {error}" for url, error in self.silent.items()]

    def _watch(self, host: ProcAddress, state: HostState) -> None:
        """Watch a host, so that nobody waits for its answers once it is lost."""
        pid = state.pid
        if self._pids.get(host.uid) == pid:
            return
        self._pids[host.uid] = pid
        node = self._agent.node

        def gone() -> None:
            reason = "the host agent's process ended"
            node.peer_down.report(ProcDown(host.uid, reason, expected=True))

        address = ProcAddress(host.uid, host.urls, state.machine)
        node.failure_detector.watch(address, pid, gone)

    def _lose(self, uid: Uid, down: ProcDown) -> None:
        self._num_lost += 1

    def proc_generations(self, responses: Mapping[str, Response[HostState]]) -> dict[Uid, int]:
        """Return the generation of each proc on these hosts, by uid.

        Procs that do not answer are left out.
        """
        node = self._agent.node
        questions = {}
        for state in states_of(responses).values():
            for proc in state.procs:
                if proc.address is not None:
                    address = ProcAddress(proc.uid, proc.address.urls, proc.address.machine)
                    node.address_book.reach(address)
                    questions[proc.uid] = node.ask(address, InspectProc())
        answers = collect(questions, _patience(len(questions)))
        return {uid: a.answer.generation for uid, a in answers.items() if not a.error}

    @contextmanager
    def _followed(self, output: Output, addresses: list[ProcAddress]) -> Iterator[Progress]:
        """Within, show the progress of a push, and which actors it waits for."""
        progress = Progress(step="")
        node = self._agent.node
        sender = node.bulk_sender
        sent_before = sender.num_chunk_bytes
        hosts = addresses[:_MAX_ASKED]

        def look() -> tuple[Progress, int]:
            if progress.step != "stage" or not progress.bytes_to_send:
                return progress, 0
            sent = sender.num_chunk_bytes - sent_before
            inspected = {a: node.ask(a, Inspect()) for a in hosts}
            answers = collect(inspected, _patience(len(inspected))).values()
            staged = sum(answer.answer.staged_bytes for answer in answers if not answer.error)
            if len(hosts) < len(addresses):
                staged = staged * len(addresses) // len(hosts)
            return progress, max(staged, sent)

        def waits(text: str) -> None:
            if self.tells_waits:
                output.note("waiting", text)

        session_of(self._agent).reload.on_waiting = waits
        with followed_by(progress), output.busy(look):
            yield progress


def states_of(responses: Mapping[str, Response[HostState]]) -> dict[str, HostState]:
    """Return the states of the hosts that have answered, by URL."""
    return {url: response.answer for url, response in responses.items() if not response.error}


def _patience(num_asked: int) -> float:
    return _ANSWER_SECONDS + num_asked * _EACH_SECONDS


@contextmanager
def interruptions(pusher: Pusher, output: Output) -> Iterator[None]:
    """In the block, Ctrl-C ends the program, which first says which generation the hosts have.

    A push that Ctrl-C interrupts has undone all its changes by then.
    """
    with asked_to_end():
        try:
            yield
        except KeyboardInterrupt:
            at_once_from_here()
            output.note("interrupted", f"interrupted; {pusher.generations()}", ok=False)
            sys.exit(130)


def _faults_in(changed: Sequence[str], workspace: Workspace) -> Iterator[str]:
    """Yield errors of pushed files that do not compile; processes check only files they have
    loaded."""
    code = [path for path in changed if path.endswith(".py")]
    if len(code) > _MAX_PARSED:
        return
    for path in code:
        local = next(
            (candidate for candidate in workspace.locate(path) if candidate.is_file()), None
        )
        try:
            if local is None or local.stat().st_size > _MAX_PARSED_BYTES:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(local.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"{printable(path)}:{line}" if line else printable(path)
            reason = getattr(error, "msg", None) or error or "it is nested too deeply"
            yield f"{where} does not compile: {reason}. It was pushed: no process has loaded it"
        except OSError:
            continue  # gone again
