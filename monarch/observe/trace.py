"""One trace of all ranks, in Chrome's format, which ui.perfetto.dev opens.

A process of the trace is a rank, or the client; its threads are actors. Times are microseconds
since 1970, minus the beginning of the trace, by this machine's clock.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.runtime.observe.drain import unpack, unpack_lines

_TORCH_TID = 1_000_000


class MeshTrace:
    """A trace of rows as `MeshVisit.drain` gathers them; ``write`` writes the file.

    ``window_ns``, nanoseconds since 1970, leaves out events that ended before its begin, or after
    its end.
    """

    def __init__(self, packed: Iterable[bytes], window_ns: tuple[int, int] | None = None) -> None:
        rows = [row for data in packed for row in unpack_lines(data)]
        #: The rows of processes, by uid.
        self._procs: dict[str, dict[str, Any]] = {}
        #: The rows of hosts' clocks, by host.
        self._clocks: dict[str, dict[str, Any]] = {}
        for row in rows:
            if row["k"] == "proc":
                self._procs[row["p"]] = row
            elif row["k"] == "clock":
                self._clocks[row["host"]] = row
        #: The rows to draw, by time.
        self._rows = sorted(
            (row for row in rows if row["k"] in _MAKERS and row["p"] in self._procs),
            key=lambda row: row["t"],
        )
        if window_ns is not None:
            begin, end = window_ns
            self._rows = [row for row in self._rows if begin <= self._ended(row) <= end]
        #: The actors' names, by process, mesh and rank.
        self._names = {
            (row["p"], row["mesh"], row["rank"]): row["name"] for row in rows if row["k"] == "actor"
        }
        #: The numbers of processes in the trace, by uid.
        self._pids = {uid: number for number, uid in enumerate(self._in_order(), 1)}
        #: The numbers of actors in the trace, by process, mesh and rank.
        self._tids: dict[tuple[str, str, int], int] = {}
        self._events: list[dict[str, Any]] = []
        #: The events of torch's profiler; threads have names instead of numbers.
        self._torch: list[dict[str, Any]] = []
        #: The beginning of the trace, in nanoseconds since 1970.
        self._began_ns = min(map(self._began, self._rows), default=0)

    def _in_order(self) -> list[str]:
        """Return the processes' uids in the order of the trace: the client first, then ranks."""
        return sorted(
            self._procs,
            key=lambda uid: (
                self._procs[uid]["name"] != "client", not self._procs[uid].get("mesh"),
                self._procs[uid].get("host") or "", self._procs[uid]["rank"], uid,
            ),
        )  # fmt: skip

    def _epoch(self, row: Mapping[str, Any]) -> int:
        """Return a row's time, in nanoseconds since 1970 by this machine's clock."""
        proc = self._procs[row["p"]]
        clock = self._clocks.get(proc.get("host") or "", proc)
        return int(row["t"] + clock["offset"])

    def _began(self, row: Mapping[str, Any]) -> int:
        """Return the time at which a call or a span began, as `_epoch` does."""
        return self._epoch(row) - int(row.get("run") or 0)

    def _ended(self, row: Mapping[str, Any]) -> int:
        """Return the time at which a row's event ended, in nanoseconds since 1970 by this machine's
        clock."""
        return int(row["epoch"]) if row["k"] == "collective" else self._epoch(row)

    def _us(self, epoch_ns: int) -> float:
        return (epoch_ns - self._began_ns) / 1000

    @property
    def clock_error_us(self) -> float:
        """Return the largest error between two hosts' clocks, in microseconds."""
        return max((clock.get("run") or 0 for clock in self._clocks.values()), default=0) / 1000

    @property
    def num_ranks(self) -> int:
        """Return how many procs are in the trace."""
        return sum(bool(proc.get("mesh")) for proc in self._procs.values())

    def add_torch(self, uid: str, packed: bytes) -> None:
        """Add a trace of torch's profiler from the proc ``uid``."""
        trace = json.loads(unpack(packed))
        base_ns = int(trace.get("baseTimeNanoseconds", 0))
        for event in trace.get("traceEvents", ()):
            if event.get("ph") == "M" or not isinstance(event.get("ts"), int | float):
                continue
            merged = dict(event)
            merged["pid"] = self._pids.get(uid, 0)
            merged["tid"] = f"torch {event.get('tid', '')}"
            merged["ts"] = self._us(base_ns + int(event["ts"] * 1000))
            self._torch.append(merged)

    def add_profiles(self, profiles: Mapping[str, tuple[bytes, str]]) -> dict[str, str]:
        """Add what `MeshVisit.profile` returns; return the errors of procs that have no trace."""
        for uid, (packed, error) in profiles.items():
            if not error:
                self.add_torch(uid, packed)
        return {uid: error for uid, (_, error) in profiles.items() if error}

    def events(self) -> list[dict[str, Any]]:
        """Return all events of the trace."""
        self._events = []
        for uid, pid in self._pids.items():
            proc = self._procs[uid]
            host = f" on {proc['host']}" if proc.get("host") else ""
            self._meta(pid, 0, "process_name", {"name": f"{proc['name']}{host}"})
            self._meta(pid, 0, "process_sort_index", {"sort_index": pid})
        for row in self._rows:
            _MAKERS[row["k"]](self, row)
        self._flows()
        for (uid, mesh, rank), tid in self._tids.items():
            name = self._names.get((uid, mesh, rank), "main")
            self._meta(self._pids[uid], tid, "thread_name", {"name": name})
        return [*self._events, *_integer_threads(self._torch)]

    def write(self, path: Path) -> None:
        """Write the trace as JSON, with gzip if the name ends in .gz.

        Raises ``OSError`` if the file cannot be written.
        """
        data = {
            "traceEvents": self.events(),
            "displayTimeUnit": "ms",
            "otherData": {
                "began_ns_since_1970": str(self._began_ns),
                "clock_error_us": self.clock_error_us,
            },
        }
        text = json.dumps(data).encode()
        path.write_bytes(gzip.compress(text, 3) if path.suffix == ".gz" else text)

    def _meta(self, pid: int, tid: int, name: str, args: Mapping[str, Any]) -> None:
        self._events.append({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})

    def _tid(self, row: Mapping[str, Any]) -> int:
        key = (row["p"], row.get("mesh", ""), row.get("rank", 0))
        return self._tids.setdefault(key, len(self._tids) + 1)

    def _add(self, phase: str, row: Mapping[str, Any], epoch_ns: int, **fields: Any) -> None:
        """Add an event on the thread of a row's actor, at a time since 1970."""
        where = {"pid": self._pids[row["p"]], "tid": self._tid(row)}
        self._events.append({"ph": phase, "ts": self._us(epoch_ns), **where, **fields})

    def _slice(
        self, row: Mapping[str, Any], name: str, kind: str, us: float, args: Mapping[str, Any]
    ) -> None:
        """Add a slice of ``us`` microseconds that begins when the row's event began."""
        self._add("X", row, self._began(row), name=name, cat=kind, dur=us, args=args)

    def _call(self, row: Mapping[str, Any]) -> None:
        args = {name: row[name] for name in ("ok", "generation")}
        args["waited_us"] = row["wait"] / 1000
        self._slice(row, row["method"] or "__init__", "call", row["run"] / 1000, args)

    def _sent(self, row: Mapping[str, Any]) -> None:
        # Calls of one sender overlap: these are pairs of their own, not nested slices.
        number = f"{row['p']}:{row['port'] or row['t']}"
        common = {"cat": "sent", "name": f"{row['method'] or '__init__'}()", "id": number}
        args = {"num": row["num"], "ok": row["ok"]}
        self._add("b", row, self._began(row), args=args, **common)
        self._add("e", row, self._epoch(row), **common)

    def _span(self, row: Mapping[str, Any]) -> None:
        self._slice(row, row["method"], "span", row["run"] / 1000, {})

    def _instant(self, row: Mapping[str, Any]) -> None:
        name = {
            "push": f"generation {row.get('generation')}",
            "status": f"{row.get('status')}",
            "failure": f"{row.get('name')} failed",
        }[row["k"]]
        args = {"text": row.get("text", "")}
        self._add("i", row, self._epoch(row), s="p", name=name, cat=row["k"], args=args)

    def _collective(self, row: Mapping[str, Any]) -> None:
        args = {"group": row["group"], "sizes": row["text"], "place": row["place"]}
        self._events.append(
            {"ph": "i", "s": "t", "name": f"{row['op']} #{row['seq']}", "cat": "collective",
             "ts": self._us(row["epoch"]), "pid": self._pids[row["p"]], "tid": 0, "args": args}
        )  # fmt: skip

    def _flows(self) -> None:
        """Add arrows from the sender of a call to the actor that ran it; both recorded the answer's
        port."""
        calls: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
        for row in self._rows:
            if row["k"] == "call" and row["port"]:
                calls[row["sender"], row["port"]].append(row)
        for row in self._rows:
            if row["k"] != "sent" or not row["port"]:
                continue
            receivers = calls.get((row["p"], row["port"]), ())
            if receivers:  # An arrow begins at a slice.
                self._slice(row, f"send {row['method'] or '__init__'}", "send", 1.0, {})
            for number, call in enumerate(receivers):
                arrow = f"{row['p']}:{row['port']}:{number}"
                common = {"name": "call", "cat": "flow", "id": arrow}
                self._add("s", row, self._began(row), **common)
                self._add("f", call, self._began(call), bp="e", **common)


_MAKERS = {
    "call": MeshTrace._call,
    "sent": MeshTrace._sent,
    "span": MeshTrace._span,
    "push": MeshTrace._instant,
    "status": MeshTrace._instant,
    "failure": MeshTrace._instant,
    "collective": MeshTrace._collective,
}


def _integer_threads(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with a number for each thread, which the format needs, instead of its name.

    An event for each thread has its name.
    """
    numbers: dict[tuple[int, str], int] = {}
    numbered = []
    for event in events:
        key = event["pid"], event["tid"]
        number = numbers.setdefault(key, _TORCH_TID + len(numbers))
        numbered.append({**event, "tid": number})
    names = [
        {"ph": "M", "pid": pid, "tid": number, "name": "thread_name", "args": {"name": name}}
        for (pid, name), number in numbers.items()
    ]
    return names + numbered
