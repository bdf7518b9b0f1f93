"""``monarch sync history``: lists the generations that hosts remember, newest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from monarch.errors import JobError
from monarch.wire.bulletin import Bulletin
from monarch_sync.messages import HistoryReply, ToldGeneration
from monarch_sync.words import clipped, counted, num_cells, printable

_MAX_NAMES = 3


class Row(NamedTuple):
    """A generation, and the ``hosts`` that remember it.

    ``can_go_back``: one of them has all its files. ``same_as`` is an earlier generation with the
    same state, 0 if it was new. ``is_taken_back``: a process could not switch to it.
    """

    entry: ToldGeneration
    hosts: list[str]
    can_go_back: bool
    is_current: bool
    same_as: int
    is_taken_back: bool = False

    @property
    def files(self) -> list[str]:
        return [path.decode("utf-8", "surrogateescape") for path in self.entry.paths]

    def to_dict(self, now: datetime) -> dict[str, Any]:
        entry = self.entry
        return {
            "generation": entry.generation,
            "digest": entry.digest.hex(),
            "when": (now - timedelta(seconds=entry.age_seconds)).isoformat(timespec="seconds"),
            "author": entry.author,
            "num_changed": entry.num_changed,
            "files": self.files,
            "num_files": entry.num_files,
            **{name: value for name, value in self._asdict().items() if name != "entry"},
        }


def timeline(histories: Mapping[str, HistoryReply]) -> list[Row]:
    """Return the generations of all hosts in one list, newest first.

    If hosts have different states under one number, each state has a row.
    """
    newest = max((history.generation for history in histories.values()), default=0)
    states: dict[tuple[int, bytes], list[tuple[str, ToldGeneration]]] = {}
    for host, history in histories.items():
        for entry in history.generations:
            states.setdefault((entry.generation, entry.digest), []).append((host, entry))
    rows = []
    first_with: dict[bytes, int] = {}
    for (generation, digest), tellers in sorted(states.items(), key=lambda item: item[0][0]):
        rows.append(
            Row(
                entry=tellers[0][1],
                hosts=[host for host, _ in tellers],
                can_go_back=any(entry.is_whole for _, entry in tellers),
                is_current=generation == newest,
                same_as=first_with.get(digest, 0),
                is_taken_back=any(entry.is_taken_back for _, entry in tellers),
            )
        )
        first_with.setdefault(digest, generation)
    return rows[::-1]


def goal(rows: list[Row], generation: int | None) -> int:
    """Return the generation to roll back to: ``generation``, if it is given.

    ``None`` is the latest whose state differs from the current one. Raises ``JobError`` if there is
    none, or if ``generation`` was taken back at once, because not all processes could switch to it.
    """
    if generation is None:
        digests = [row.entry.digest for row in rows if row.is_current]
        for row in rows if digests else ():
            if not row.is_taken_back and row.entry.digest != digests[0]:
                return row.entry.generation
        raise JobError(
            "there is no generation to go back to: `monarch sync history` lists what the hosts "
            "remember"
        )
    same = [row for row in rows if row.entry.generation == generation]
    if same and all(row.is_taken_back for row in same):
        raise JobError(
            f"generation {generation} was taken back at once, as not all processes could switch; "
            "`monarch sync history` lists those that stayed. To try that state again, have it "
            "here, and `monarch sync`"
        )
    return generation


def good_for(bulletins: Iterable[Bulletin], generations: Collection[int]) -> int | None:
    """Return the generation that last succeeded in a run that holds, if it is in ``generations``.

    ``None`` if no run holds, or its generation is not among them. A generation after it may fail as
    the current one does.
    """
    for bulletin in bulletins:
        good = int(bulletin.data.get("good", 0)) if bulletin.kind == "held" else 0
        if good in generations and good < bulletin.generation:
            return good
    return None


def like_now(history: HistoryReply) -> frozenset[int]:
    """Return the generations of a host that had its current state, including the current one."""
    return frozenset(e.generation for e in history.generations if e.digest == history.digest)


def others_line(rows: list[Row], numbers: range, num_hosts: int) -> str:
    """Describe the generations with these ``numbers``, which others have made.

    If the hosts remember none of them, say only how many they are.
    """
    rows = [row for row in rows[::-1] if row.entry.generation in numbers]
    parts = [
        f"gen {row.entry.generation} from {printable(row.entry.author)}, "
        f"{_files(row, _MAX_NAMES, num_hosts)}"
        for row in rows
    ]
    return " and ".join(parts) if parts else f"{counted(len(numbers), 'generation')} from elsewhere"


def timeline_lines(rows: list[Row], now: datetime, num_hosts: int, width: int | None) -> list[str]:
    """Return a line for each generation, with as many names of files as there is room for."""
    table = [("", "gen", "when", "who", "digest")]
    for row in rows:
        entry = row.entry
        mark = "*" if row.is_current else " " if row.can_go_back else "-"
        when = _when(now - timedelta(seconds=entry.age_seconds), now)
        table.append(
            (
                mark,
                str(entry.generation),
                when,
                printable(entry.author),
                entry.digest.hex()[:8],
            )
        )
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    heads = ["  ".join(map(str.ljust, cells, widths)) for cells in table]
    lines = [f"{heads[0]}  files"]
    for head, row in zip(heads[1:], rows, strict=True):
        for num_names in range(_MAX_NAMES, -1, -1):
            line = f"{head}  {_files(row, num_names, num_hosts)}"
            if width is None or num_cells(line) <= width:
                break
        lines.append(line if width is None else clipped(line, width))
    if any(not row.can_go_back for row in rows):
        lines.append("-: some of its contents were trimmed from the stores of the hosts")
    return lines


def _files(row: Row, num_names: int, num_hosts: int) -> str:
    """Return the names of some of the files that changed, and notes on the generation."""
    num_changed = row.entry.num_changed
    names = row.files[:num_names]
    files = counted(num_changed, "file") if num_changed else "no file: links, modes or folders"
    if names:
        num_more = num_changed - len(names)
        more = f" and {num_more:,} more" if num_more > 0 else ""
        files += f": {', '.join(map(printable, names))}{more}"
    if row.is_taken_back:
        files += " (taken back)"
    if row.same_as:
        files += f" (same as gen {row.same_as})"
    if len(row.hosts) < num_hosts:
        files += f" (on {len(row.hosts)} of {num_hosts} hosts)"
    return files


def _when(then: datetime, now: datetime) -> str:
    return then.strftime("%H:%M:%S" if then.date() == now.date() else "%Y-%m-%d %H:%M")
