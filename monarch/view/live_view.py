"""The state of a mesh at one moment, made of two looks at it; all views show this data."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monarch.mesh.ranges import ranges_in_words
from monarch.observe.hang_report import HangReport, edit_holds_of, hang_report, holds_of
from monarch.wire.hold import HoldNote

_HISTORY_SECONDS = 900
_MOST_RANKS = 4096
_MOST_FAILURES = 50
# Actors of a run's machinery, beside a person's own in each proc.
_OURS = frozenset({
    "monarch.runs.hold.trial.Trial", "monarch.runs.recover.witness.Witness",
    "monarch.spmd.elastic.SPMDActor",
})  # fmt: skip
_ODD = ("failed", "hangs", "held", "no answer")


@dataclass(frozen=True)
class RankView:
    """What one actor does on one rank, as a row of a view."""

    host: str
    #: Name and rank of its proc, as ``trainer 3``.
    proc: str
    actor: str
    rank: int
    status: str
    #: The endpoint that runs, or the place of a held call; "" if it is idle.
    doing: str = ""
    #: How long ``doing`` has lasted.
    seconds: float = 0.0
    #: Calls that it ends in a second.
    rate: float = 0.0
    #: Messages that wait.
    queue: int = 0
    #: Resident memory of its proc, in bytes.
    rss: int = 0
    generation: int = 0
    #: Pid and uid of its proc.
    pid: int = 0
    uid: str = ""
    #: Why it failed; "" if it did not.
    failure: str = ""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that do the same on one host; the fields are those of `RankView`."""

    host: str
    actor: str
    #: In words, as ``0-3, 7``.
    ranks: str
    num_ranks: int
    status: str
    doing: str
    #: The longest of them.
    seconds: float
    #: The sums over them.
    rate: float
    queue: int
    #: The largest of them.
    rss: int
    #: Several are joined by slashes.
    generation: str
    #: Whether most ranks of their actor do something else.
    is_odd: bool
    pids: tuple[int, ...]
    uids: tuple[str, ...]


class LiveView:
    """Makes snapshots from looks (`Visit.look`); it keeps a quarter of an hour of counters."""

    def __init__(self) -> None:
        self._counts_before: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._cpu: dict[str, tuple[float, float]] = {}
        self._failures: dict[str, dict[str, Any]] = {}
        self._late: set[tuple[str, int]] = set()
        self._collectives = HangReport()
        self.history: deque[dict[str, float]] = deque(maxlen=_HISTORY_SECONDS)

    def update(self, looks: Sequence[Mapping[str, Any]], now: float) -> dict[str, Any]:
        """Return a snapshot as plain data; ``now`` is in seconds since 1970."""
        holds = holds_of(looks)
        ranks = [_held(rank, holds, now) for rank in self._ranks(looks)]
        hosts = [self._host(look) for look in looks if len(looks) == 1 or not _only_asks(look)]
        self._note_failures(ranks, now)
        report = hang_report(looks)
        self._keep_collectives(report, looks)
        rate, queue = sum(rank.rate for rank in ranks), sum(rank.queue for rank in ranks)
        busy = [host["cpu"] for host in hosts if host.get("cpu") is not None]
        gpus = [gpu.get("busy", 0) for host in hosts for gpu in host.get("gpus", ())]
        counters = {
            "at": now, "rate": rate, "queue": queue,
            "cpu": sum(busy) / len(busy) if busy else 0.0,
            "gpu": sum(gpus) / len(gpus) if gpus else 0.0,
            "rss": float(sum({rank.pid: rank.rss for rank in ranks}.values())),
        }  # fmt: skip
        self.history.append(counters)
        return {
            "at": now,
            "hosts": hosts,
            "groups": [{**vars(group)} for group in grouped(ranks)],
            "ranks": [{**vars(rank)} for rank in ranks[:_MOST_RANKS]],
            "num_ranks": len({(rank.host, rank.uid) for rank in ranks}),
            "counters": counters,
            "waits": report.lines,
            "is_hang": report.is_hang,
            "edges": [
                {"waiter": str(e.waiter), "awaited": str(e.awaited), "method": e.method,
                 "seconds": e.seconds}
                for e in report.waits[:200]
            ],
            "failures": list(self._failures.values()),
            "holds": [
                {"who": f"{hold.actor} {hold.rank}", "place": hold.place, "since": hold.since,
                 "function": hold.function, "method": hold.method,
                 "reason": hold.error or hold.reason}
                for hold in holds.values()
            ],
            "edit_holds": edit_holds_of(looks),
        }  # fmt: skip

    def _keep_collectives(self, report: HangReport, looks: Sequence[Mapping[str, Any]]) -> None:
        """Reuse the last report of collectives if these looks have none."""
        procs = [proc for look in looks for proc in look.get("procs", ())]
        if any("flight" in proc for proc in procs) or not procs:
            late_before, self._late = self._late, report.late
            report.keep_late(late_before)
            self._collectives = report
        report.mismatches = self._collectives.mismatches
        report.under_way = self._collectives.under_way

    def _host(self, look: Mapping[str, Any]) -> dict[str, Any]:
        if "error" in look:
            return {"name": look["url"], "error": look["error"]}
        name = look["host"]
        cpu = None
        if "cpu_total" in look:
            busy, total = look["cpu_busy"], look["cpu_total"]
            was_busy, was_total = self._cpu.get(name, (0.0, 0.0))
            cpu = (busy - was_busy) / (total - was_total) if total > was_total else 0.0
            self._cpu[name] = busy, total
        return {
            "name": name, "cpu": cpu, "num_cpus": look.get("num_cpus"),
            "mem_used": look.get("mem_used"), "mem_total": look.get("mem_total"),
            "gpus": look.get("gpus", []), "num_procs": len(look.get("procs", ())),
            "pid": look.get("pid"), "is_used": bool(look.get("client")),
        }  # fmt: skip

    def _ranks(self, looks: Sequence[Mapping[str, Any]]) -> list[RankView]:
        ranks = []
        counts: dict[tuple[str, str, int], tuple[int, int]] = {}
        for look in looks:
            for proc in look.get("procs", ()):
                ranks += self._of_proc(str(look.get("host", "")), proc, counts)
        self._counts_before = counts
        return ranks

    def _of_proc(
        self,
        host: str,
        proc: Mapping[str, Any],
        counts: dict[tuple[str, str, int], tuple[int, int]],
    ) -> list[RankView]:
        about: dict[str, Any] = {
            "host": host, "proc": f"{proc['name']} {proc['rank']}", "pid": proc["pid"],
            "rss": proc.get("rss", 0), "uid": proc["uid"],
            "generation": proc.get("generation", 0) or 0,
        }  # fmt: skip
        if proc["hangs"] or not proc["answers"]:
            status = "hangs" if proc["hangs"] else "no answer" if proc["is_up"] else "starting"
            return [
                RankView(actor=proc["name"], rank=proc["rank"], status=status,
                         doing=proc["hangs"], **about)
            ]  # fmt: skip
        actors = [a for a in proc.get("actors", ()) if a.get("class", "") not in _OURS]
        if not actors:
            return [RankView(actor=proc["name"], rank=proc["rank"], status="empty", **about)]
        ranks = []
        for actor in actors:
            key = proc["uid"], actor["mesh"], actor["rank"]
            counts[key] = actor["num_ended"], proc["now"]
            ended, counted_at = self._counts_before.get(key, counts[key])
            elapsed = (proc["now"] - counted_at) / 1e9
            doing = actor["doing"][0] if actor["doing"] else {}
            ranks.append(
                RankView(
                    actor=actor["name"], rank=actor["rank"], status=actor["status"],
                    doing=doing.get("method", ""), seconds=doing.get("seconds", 0.0),
                    rate=(actor["num_ended"] - ended) / elapsed if elapsed > 0 else 0.0,
                    queue=actor["queue"], failure=actor.get("failure", ""), **about,
                )
            )  # fmt: skip
        return ranks

    def _note_failures(self, ranks: Iterable[RankView], now: float) -> None:
        for rank in ranks:
            key = f"{rank.uid} {rank.actor}"
            if rank.status in ("failed", "hangs") and key not in self._failures:
                self._failures[key] = {
                    "at": now, "who": f"{rank.actor} {rank.rank}", "host": rank.host,
                    "text": rank.failure or rank.doing,
                }  # fmt: skip
        while len(self._failures) > _MOST_FAILURES:
            del self._failures[next(iter(self._failures))]


def _only_asks(look: Mapping[str, Any]) -> bool:
    """Whether the look is at a program that has no procs of its own.

    All its procs, if any, are on the hosts of its allocation.
    """
    client = look.get("client_state") or {}
    return bool(client) and client["uid"] == look.get("uid") and not look.get("procs")


def _held(rank: RankView, holds: Mapping[tuple[str, str, int], HoldNote], now: float) -> RankView:
    """Return ``rank`` with its held call, from ``holds``: the place, and for how long it is held.

    If none of its calls is held, return ``rank`` unchanged.
    """
    hold = holds.get((rank.uid, rank.actor, rank.rank))
    if hold is None:
        return rank
    seconds = max(0.0, now - hold.since)
    return replace(rank, status="held", doing=hold.place, seconds=seconds)


def grouped(ranks: Sequence[RankView]) -> list[RankGroup]:
    """Return groups of ranks that do the same.

    Odd groups come first: those with an error, or whose activity is that of less than half of the
    actor's ranks.
    """
    ranks_by_group: dict[tuple[str, ...], list[RankView]] = defaultdict(list)
    by_actor: dict[str, int] = defaultdict(int)
    for rank in ranks:
        ranks_by_group[rank.host, rank.actor, rank.status, rank.doing].append(rank)
        by_actor[rank.actor] += 1
    num_doing: dict[tuple[str, ...], int] = defaultdict(int)
    for rank in ranks:
        num_doing[rank.actor, rank.status, rank.doing] += 1
    groups = []
    for (host, actor, status, doing), members in ranks_by_group.items():
        share = num_doing[actor, status, doing] / by_actor[actor]
        generations = sorted({rank.generation for rank in members})
        groups.append(
            RankGroup(
                host=host, actor=actor, ranks=ranges_in_words(rank.rank for rank in members),
                num_ranks=len(members), status=status, doing=doing,
                seconds=max(rank.seconds for rank in members),
                rate=sum(rank.rate for rank in members), queue=sum(rank.queue for rank in members),
                rss=max(rank.rss for rank in members),
                generation="/".join(map(str, generations)),
                is_odd=status in _ODD or share < 0.5,
                pids=tuple(rank.pid for rank in members), uids=tuple(rank.uid for rank in members),
            )
        )  # fmt: skip
    return sorted(groups, key=lambda g: (not g.is_odd, g.host, g.actor, -g.num_ranks, g.ranks))


COLUMNS = ("host", "actor", "ranks", "does", "for", "calls/s", "queue", "mem", "gen")


def cells_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts of a rank or a group of a snapshot, in the order of ``COLUMNS``."""
    ranks = row.get("ranks", str(row.get("rank", "")))
    return (
        row["host"],
        row["actor"],
        f"● {ranks}" if row.get("is_odd") else ranks,
        f"{row['status']} {row['doing']}".strip(),
        f"{row['seconds']:.1f} s" if row["seconds"] else "",
        f"{row['rate']:.0f}",
        str(row["queue"]),
        size_in_words(row["rss"]),
        str(row["generation"]),
    )


def size_in_words(num_bytes: float | None) -> str:
    """Return a size such as ``1.2G``; ``-`` if it is not known."""
    if num_bytes is None:
        return "-"
    for unit in ("", "K", "M"):
        if num_bytes < 1000:
            digits = 0 if num_bytes >= 10 or not unit else 1
            return f"{num_bytes:.{digits}f}{unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f}G"
