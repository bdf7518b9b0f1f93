"""``monarch sync status``: shows which host and proc runs which generation, and what is stale."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from monarch.cli.allocation.host_table import in_short
from monarch.cli.terminal.tables import in_columns
from monarch.runtime.answers import Response
from monarch.wire.message import HostState
from monarch_sync.words import counted


class Standing(NamedTuple):
    """A host, and its procs' names by generation; ``None`` is for procs that do not answer.

    ``error`` says why a host does not answer itself.
    """

    host: str
    generation: int
    digest: str
    procs: dict[int | None, list[str]]
    error: str = ""

    @property
    def is_gone(self) -> bool:
        """Whether the pushed files were deleted on the host."""
        return bool(self.generation and not self.digest)


def standings(
    responses: Mapping[str, Response[HostState]],
    procs: Mapping[str, int],
    like_now: Mapping[str, Collection[int]],
    name_of: Callable[[str], str],
) -> list[Standing]:
    """Return the standing of each host, from the hosts' answers by URL.

    ``procs`` are the generations of procs, by uid. ``like_now`` has, by URL, the generations that
    equal a host's current state: a proc that runs one of them runs the host's current code.
    ``name_of`` returns the name of a host that does not answer.
    """
    hosts = []
    for url, response in responses.items():
        if response.error:
            hosts.append(Standing(name_of(url), 0, "", {}, response.error))
            continue
        state = response.answer
        running: dict[int | None, list[str]] = {}
        for proc in state.procs:
            generation = procs.get(proc.uid)
            if generation in like_now.get(url, ()):
                generation = state.generation
            running.setdefault(generation, []).append(proc.label)
        hosts.append(Standing(state.host, state.generation, state.digest, running))
    return hosts


def status_lines(hosts: list[Standing]) -> list[str]:
    """Return a row for each host, and a sentence: all are current, or what is stale and what to
    do."""
    newest = max((host.generation for host in hosts), default=0)
    rows = [("host", "generation", "digest", "procs")]
    stale_hosts, stale_procs, silent = 0, 0, 0
    lost = [host for host in hosts if host.error]
    answered = [host for host in hosts if not host.error]
    current = {host.digest for host in answered if host.generation == newest}
    for host in answered:
        stale_hosts += host.digest not in current
        digest = (host.digest[:8] if host.generation else "") or "-"
        about = []
        for generation, names in host.procs.items():
            proc_names = in_short(names)
            if generation is None:
                silent += len(names)
                about.append(f"{proc_names}: no answer")
            elif generation != host.generation:
                stale_procs += len(names)
                about.append(f"{proc_names}: gen {generation}")
            else:
                about.append(proc_names)
        number = str(host.generation or "-")
        if host.generation < newest:
            number += f" (same as {newest})" if host.digest in current else " (stale)"
        elif host.is_gone:
            number += " (deleted)"
        rows.append((host.host, number, digest, "; ".join(about) or "-"))
    lines = [*in_columns(rows)]
    lines += [f"{host.host}: {host.error}" for host in lost]
    if lost:
        silent_hosts = counted(len(lost), "host")
        lines.append(
            f"{silent_hosts} gave no answer: `monarch sync --best-effort` goes on without, "
            "`monarch apply` starts anew"
        )
    stale = stale_hosts, stale_procs, silent
    return [*lines, _sum_up(answered, newest, stale, num_lost=len(lost))]


def _sum_up(
    answered: list[Standing], newest: int, stale: tuple[int, int, int], *, num_lost: int
) -> str:
    if not newest:
        if num_lost:
            return "what was pushed is not known: no host that answered has a generation"
        return "nothing was pushed yet: `monarch sync` brings your files to the hosts"
    digests = {host.digest for host in answered if host.generation == newest and not host.is_gone}
    if len(digests) > 1:
        return f"hosts differ in what generation {newest} is: `monarch sync` brings them in line"
    stale_hosts, stale_procs, silent = stale
    faults = []
    if num_gone := sum(host.is_gone for host in answered):
        faults.append(f"{counted(num_gone, 'host')} whose copy was deleted")
    if stale_hosts:
        faults.append(f"{counted(stale_hosts, 'host')} behind generation {newest}")
    if stale_procs:
        faults.append(f"{counted(stale_procs, 'proc')} not on its host's generation")
    if silent:
        faults.append(f"{counted(silent, 'proc')} did not answer (`monarch status` tells more)")
    if faults:
        return f"{', '.join(faults)}: `monarch sync` brings hosts and procs in line"
    num_procs = sum(len(names) for host in answered for names in host.procs.values())
    procs = f" and {counted(num_procs, 'proc')}" if num_procs else ""
    if num_lost:
        total = counted(len(answered) + num_lost, "host")
        return f"{len(answered)} of {total}{procs} on generation {newest}, the rest not known"
    return f"{counted(len(answered), 'host')}{procs}, all on generation {newest}"
