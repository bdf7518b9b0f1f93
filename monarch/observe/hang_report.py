"""Why a mesh does not advance: which ranks wait for which, and which collective does not match."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from monarch.core.collectives import Collective, CollectiveMismatch, mismatches
from monarch.core.holds import named
from monarch.core.waits import Member, WaitEdge, ends, in_lines, members_in_words, rings
from monarch.wire.hold import HoldNote

CLIENT = Member("client")
LATE_SECONDS = 1.0
"""A rank that trains is seen on its way to a collective for less than that."""
_SHORT_SECONDS = 0.05


@dataclass
class HangReport:
    """The report of who waits for whom, and what cannot end by itself, at one moment."""

    #: Who waits for whom, by calls.
    waits: list[WaitEdge] = field(default_factory=list)
    #: Actors that wait for each other.
    rings: list[list[Member]] = field(default_factory=list)
    #: The activities of awaited actors.
    doing: dict[Member, str] = field(default_factory=dict)
    mismatches: list[CollectiveMismatch] = field(default_factory=list)
    #: Collectives that can still complete, in words.
    under_way: list[str] = field(default_factory=list)
    #: Held calls, and runs that hold after an edit, in words.
    held: list[str] = field(default_factory=list)
    #: Waits that are no calls, as parts of runs have announced them.
    told: list[str] = field(default_factory=list)
    #: Procs that do not answer their host, with the reason.
    stuck: list[str] = field(default_factory=list)
    #: Hosts and procs that did not answer this question.
    unseen: list[str] = field(default_factory=list)

    @property
    def is_hang(self) -> bool:
        """Whether the report has something that cannot end by itself."""
        return bool(self.rings or self.mismatches or self.stuck)

    @property
    def late(self) -> set[tuple[str, int]]:
        """Return the collectives of mismatches that may only be late, by group and number.

        In these, the ranks agree so far, and some ranks have not reached the collective.
        """
        return {(m.group, m.seq) for m in self.mismatches if len(m.by_kind) == 1}

    def keep_late(self, late_before: Collection[tuple[str, int]]) -> None:
        """Drop mismatches of `late` collectives that are not in ``late_before``.

        Their ranks may be on their way.
        """
        passing = self.late.difference(late_before)
        self.mismatches = [m for m in self.mismatches if (m.group, m.seq) not in passing]

    @property
    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        lines = [f"collectives do not match: {mismatch.text}" for mismatch in self.mismatches]
        for ring in self.rings:
            chain = " -> ".join(str(member) for member in [*ring, ring[0]])
            lines.append(f"actors wait for each other and will never answer: {chain}")
        lines += [f"does not answer: {text}" for text in self.stuck]
        lines += [f"held: {text}" for text in self.held]
        lines += self.told
        lines += in_lines(self.waits)
        members_by_text: dict[str, list[Member]] = defaultdict(list)
        for member, text in self.doing.items():
            members_by_text[text].append(member)
        lines += [
            f"{members_in_words(members)}: {text}" for text, members in members_by_text.items()
        ]
        lines += [f"under way: {text}" for text in self.under_way]
        lines += [f"could not be asked: {text}" for text in self.unseen]
        return lines or ["nobody waits for anybody"]

    def to_data(self) -> dict[str, Any]:
        """Return the report as plain data, for programs."""
        return {
            "is_hang": self.is_hang,
            "waits": [
                {"waiter": str(e.waiter), "awaited": str(e.awaited), "method": e.method,
                 "seconds": round(e.seconds, 3)}
                for e in self.waits
            ],
            "rings": [[str(member) for member in ring] for ring in self.rings],
            "mismatches": [
                {"group": m.group, "seq": m.seq, "ranks": m.by_kind, "places": m.places,
                 "missing": list(m.missing), "text": m.text}
                for m in self.mismatches
            ],
            "doing": {str(member): text for member, text in self.doing.items()},
            "held": self.held,
            "told": self.told,
            "stuck": self.stuck,
            "under_way": self.under_way,
            "unseen": self.unseen,
            "lines": self.lines,
        }  # fmt: skip


def hang_report(looks: Iterable[Mapping[str, Any]]) -> HangReport:
    """Make the report from hosts' answers (`MeshVisit.look`, with torch's collectives)."""
    looks = list(looks)
    report = HangReport()
    holds = holds_of(looks)
    report.held = _held_in_words(holds.values(), looks)
    report.told = [*_notices(looks, "waiting").values()]
    procs: dict[str, Mapping[str, Any]] = {}
    clients: dict[str, Mapping[str, Any]] = {}
    for host in looks:
        if "error" in host:
            report.unseen.append(f"{host['url']}: {host['error']}")
        for proc in host.get("procs", ()):
            procs[proc["uid"]] = proc
            if proc["hangs"]:
                report.stuck.append(f"{proc['name']} {proc['rank']}: {proc['hangs']}")
            elif proc["is_up"] and not proc["answers"]:
                report.unseen.append(f"{proc['name']} {proc['rank']}: no answer in time")
        state = host.get("client_state")
        if state:
            clients[state["uid"]] = state
    members = _members([*procs.values(), *clients.values()])
    report.waits = [
        edge
        for uid, state in (*procs.items(), *clients.items())
        for edge in _edges(uid, state, members)
        if edge.seconds >= _SHORT_SECONDS
    ]
    report.rings = rings(_blocking_waits(procs, members))
    report.doing = _doing(ends(report.waits), procs, members)
    for hold in holds.values():
        member = Member(hold.actor, hold.rank)
        if member in report.doing:
            report.doing[member] = f"is held at {hold.place}"
    _match_collectives(report, procs.values(), {hold.proc for hold in holds.values()})
    return report


def settled_report(
    report: HangReport, look: Callable[[], Iterable[Mapping[str, Any]]], pause: Callable[[], object]
) -> HangReport:
    """Return ``report``, or a second one if ranks have not reached a collective.

    The second one is made after a ``pause``. It leaves out collectives that ranks reached late.
    """
    if not report.late:
        return report
    pause()
    second = hang_report(look())
    second.keep_late(report.late)
    return second


def holds_of(looks: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], HoldNote]:
    """Return the held calls, by proc, actor and rank.

    A call that both a host and its client report is in the result once.
    """
    return {
        (hold.proc, hold.actor, hold.rank): hold
        for look in looks
        for note in look.get("holds", ())
        for hold in [msgspec.convert(note, HoldNote)]
    }


def edit_holds_of(looks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the hosts' notices of runs that hold after an edit, each once."""
    return [*_notices(looks, "held").values()]


def _notices(looks: Iterable[Mapping[str, Any]], kind: str) -> dict[str, str]:
    """Return the texts of the hosts' notices of that kind, by their subject."""
    return {
        notice["key"]: str(notice["text"])
        for look in looks
        for notice in look.get("notices", ())
        if notice["kind"] == kind
    }


def _held_in_words(holds: Iterable[HoldNote], looks: Sequence[Mapping[str, Any]]) -> list[str]:
    holds_by_place: dict[tuple[str, str, str], list[HoldNote]] = defaultdict(list)
    for hold in holds:
        holds_by_place[hold.place, hold.function, hold.error or hold.reason].append(hold)
    lines = [
        f"{named(holds_there)} at {place} in {function} ({reason}); `monarch debug` opens it"
        for (place, function, reason), holds_there in holds_by_place.items()
    ]
    return lines + [text.partition("\n")[0] for text in edit_holds_of(looks)]


_Members = dict[tuple[str, str], Member]


def _members(states: Iterable[Mapping[str, Any]]) -> _Members:
    """Return the actors by process and mesh."""
    return {
        (state["uid"], actor["mesh"]): Member(actor["name"], actor["rank"])
        for state in states
        for actor in state.get("actors", ())
    }


def _edges(uid: str, state: Mapping[str, Any], members: _Members) -> list[WaitEdge]:
    edges = []
    for call in state.get("calls", ()):
        waiter = members.get((uid, call["mesh"]), CLIENT) if call["mesh"] else CLIENT
        for target in call["missing"]:
            awaited = members.get((target, call["to_mesh"]))
            if awaited is not None:
                edges.append(WaitEdge(waiter, awaited, call["method"], call["seconds"]))
    return edges


def _blocking_waits(procs: Mapping[str, Mapping[str, Any]], members: _Members) -> list[WaitEdge]:
    """Return the waits of actors that do nothing else until their wait ends."""
    return [
        WaitEdge(members[uid, actor["mesh"]], members[target, mesh], method)
        for uid, proc in procs.items()
        for actor in proc.get("actors", ())
        for target, mesh, method in actor["waits"]
        if (target, mesh) in members
    ]


def _doing(
    members: Sequence[Member], procs: Mapping[str, Mapping[str, Any]], member_of: _Members
) -> dict[Member, str]:
    actors = {
        member_of[uid, actor["mesh"]]: actor
        for uid, proc in procs.items()
        for actor in proc.get("actors", ())
    }
    texts = {}
    for member in members:
        actor = actors.get(member)
        if actor is not None:
            num = actor["queue"]
            queue = f", {num} messages wait" if num > 1 else ", 1 message waits" if num else ""
            doing = [
                f"runs {call['method']} for {call['seconds']:.1f} s" for call in actor["doing"]
            ]
            texts[member] = (", ".join(doing) or f"is {actor['status']}") + queue
    return texts


def _match_collectives(
    report: HangReport, procs: Iterable[Mapping[str, Any]], held: Collection[str]
) -> None:
    """Compare collectives within each mesh of procs, since torch uses the same group names in each.

    A collective that only ranks of ``held`` procs have not reached counts as in progress: it
    continues when they do.
    """
    meshes: dict[str, dict[int, list[Collective]]] = defaultdict(dict)
    held_ranks: dict[str, set[int]] = defaultdict(set)
    for proc in procs:
        flight = proc.get("flight") or {}
        if flight:
            entries = [collective_of(e) for e in flight["entries"] if not e["is_p2p"]]
            meshes[proc["mesh"]][flight["rank"]] = entries
            if proc["uid"] in held:
                held_ranks[proc["mesh"]].add(flight["rank"])
    for mesh, records in meshes.items():
        mismatches_of_mesh = mismatches(records)
        for mismatch in mismatches_of_mesh:
            if len(mismatch.by_kind) == 1 and held_ranks[mesh].issuperset(mismatch.missing):
                reason = "it is held" if len(mismatch.missing) == 1 else "they are held"
                report.under_way.append(f"{mismatch.text}: {reason}")
            else:
                report.mismatches.append(mismatch)
        groups = {mismatch.group for mismatch in mismatches_of_mesh}
        pending: dict[tuple[str, int, str, str], list[int]] = defaultdict(list)
        for rank, record in records.items():
            for c in record:
                if not c.is_done and c.group not in groups:
                    pending[c.group, c.seq, c.op, c.place].append(rank)
        for (group, seq, op, place), ranks in sorted(pending.items()):
            where = f" at {place}" if place else ""
            num_ranks = f"{len(ranks)} of {len(records)} ranks"
            report.under_way.append(f"group {group}, collective #{seq} {op} on {num_ranks}{where}")


def collective_of(entry: Mapping[str, Any]) -> Collective:
    """Return a collective from the row in which a process reported it."""
    return Collective(
        group=str(entry["group_name"] or entry["group"]),
        seq=entry["seq"],
        op=entry["op"],
        sizes=" ".join(map(json.dumps, entry["sizes"])),
        dtypes=" ".join(entry["dtypes"]),
        is_done=entry["done"],
        place=entry["place"],
    )
