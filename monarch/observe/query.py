"""SQL over the records of processes and the folders of runs, with DuckDB, in this process.

Rows are loaded first; then the database is locked: it opens no file and loads nothing more. So a
query can read the database's tables, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from monarch.core.event_ring import CALL, COLUMNS, SENT, SPAN
from monarch.errors import MonarchError
from monarch.observe.answer import QueryTable
from monarch.observe.json_rows import json_rows
from monarch.observe.kept_files import read_kept
from monarch.observe.snapshot_tables import SNAPSHOT_VIEWS
from monarch.observe.stacks import dump_rows, stack_rows
from monarch.observe.tables import READY, ROW_COLUMNS, VIEWS
from monarch.observe.visit import MeshVisit, procs_of
from monarch.runtime.observe.drain import pack_lines, row_objects, unpack, unpack_rows

if TYPE_CHECKING:
    import duckdb

TELEMETRY = "telemetry"
"""The folder of packed rows in a run's folder; each file ends with ``PACKED``."""

PACKED = ".jsonl.zst"
# There are a row or two for each call, and next to nothing else where there are many: DuckDB reads
# them as lines of CSV, several times as fast as objects.
_CALL_KINDS = (CALL, SENT, SPAN)
# By table: the file in a run's folder, and columns of a table without rows.
_RUN_TABLES = {
    "metrics": ("metrics.jsonl", ", step BIGINT, loss DOUBLE"),
    "run_events": ("events.jsonl", ", kind VARCHAR, text VARCHAR"),
}


_NO_SQL = "there is no SQL in that; `monarch query` lists what can be asked"


class QueryError(MonarchError):
    """A query cannot be answered; the message says why."""


class QueryTables:
    """The tables for queries, as a ``with`` block.

    They have ``packed`` lines, ``rows`` of processes by uid, and metrics and events of ``runs``.
    Raises ``QueryError`` if DuckDB is not installed.
    """

    def __init__(
        self,
        packed: Iterable[bytes],
        runs: Sequence[Path] = (),
        rows: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        try:
            import duckdb
        except ImportError:
            raise QueryError(
                "queries need DuckDB, which is not installed: pip install 'monarch-loop[observe]'"
            ) from None
        self._errors = duckdb.Error
        self._database = duckdb.connect()
        # A progress bar would be written between the lines of an answer.
        self._database.execute("SET enable_progress_bar = false")
        try:
            self._load(packed, runs, rows)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> QueryTables:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def _load(
        self, packed: Iterable[bytes], runs: Sequence[Path], rows: Iterable[tuple[str, bytes]]
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"rows{PACKED}")
            with open(path, "wb") as file:
                file.writelines([*packed, pack_lines([{"k": "end"}])])
                kinds = _write_rows(folder, rows, file)
            self._database.execute(
                "CREATE TABLE _rows AS SELECT * FROM read_json(?, "
                f"columns = {_types(ROW_COLUMNS)}, "
                "format = 'newline_delimited', compression = 'zstd', ignore_errors = true)",
                [path],
            )
            for kind in kinds:
                columns = _types(("p", "k", *COLUMNS[kind]))
                self._database.execute(
                    f"CREATE TABLE _rows_{kind} AS SELECT * FROM read_csv(?, header = false, "
                    f"auto_detect = false, columns = {columns}, quote = '\"', "
                    "nullstr = 'null', allow_quoted_nulls = false, ignore_errors = true)",
                    [os.path.join(folder, kind)],
                )
            parts = ["_rows", *(f"_rows_{kind}" for kind in kinds)]
            together = " UNION ALL BY NAME ".join(f"SELECT * FROM {part}" for part in parts)
            self._database.execute(f"CREATE VIEW rows AS {together}")
            for table, (name, empty) in _RUN_TABLES.items():
                self._load_files(table, [run / name for run in runs], folder, empty)
        for name, select in (*VIEWS.items(), *SNAPSHOT_VIEWS.items()):
            self._database.execute(f'CREATE VIEW "{name}" AS {select}')
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            self._database.execute(f"SET {setting}")

    def _load_files(self, table: str, paths: Sequence[Path], folder: str, empty: str) -> None:
        """Load the rows of JSON files into ``table``, each with the name of its run.

        Lines that were cut short are left out. ``empty`` declares more columns for a table without
        rows.
        """
        lines = []
        for path in paths:
            for row in json_rows(path):
                lines.append(json.dumps({"run": path.parent.name, **row}))
        if not lines:
            self._database.execute(f"CREATE TABLE {table} (run VARCHAR, time DOUBLE{empty})")
            return
        together = os.path.join(folder, f"{table}.jsonl")
        Path(together).write_text("\n".join(lines), encoding="utf-8")
        self._database.execute(
            f"CREATE TABLE {table} AS SELECT * FROM read_json(?, format = 'newline_delimited', "
            "union_by_name = true, sample_size = -1, maximum_object_size = 67108864)",
            [together],
        )

    def query(
        self, sql: str, *, most_rows: int | None = None, seconds: float = math.inf
    ) -> QueryTable:
        """Return the answer to ``sql``, or to the ready question of that name; at most
        ``most_rows`` rows.

        Raises ``QueryError``, also if it takes longer than ``seconds``.
        """
        text = READY[sql][1] if sql in READY else sql
        late = threading.Event()
        with self._stopped_after(seconds, late):
            try:
                result = self._database.execute(text)
                if result is None:
                    raise QueryError(_NO_SQL)
                columns = [column[0] for column in result.description or ()]
                rows = result.fetchall() if most_rows is None else result.fetchmany(most_rows)
                return QueryTable(columns, rows)
            except self._errors as error:
                words = _in_words(error)
                if late.is_set():
                    words = f"it took longer than {seconds:g} s, and was stopped: ask for less"
                raise QueryError(words) from None

    @contextlib.contextmanager
    def _stopped_after(self, seconds: float, late: threading.Event) -> Iterator[None]:
        """Within, interrupt the database after ``seconds``, and set ``late``."""
        if seconds == math.inf:
            yield
            return

        def stop() -> None:
            late.set()
            self._database.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def names(self) -> dict[str, list[str]]:
        """Return the names of the tables, each with the names of its columns."""
        rows = self._database.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' AND table_name <> 'rows' "
            "ORDER BY table_name, ordinal_position"
        ).fetchall()
        tables: dict[str, list[str]] = {}
        for table, column in rows:
            tables.setdefault(table, []).append(column)
        return tables


def _write_rows(folder: str, rows: Iterable[tuple[str, bytes]], file: BinaryIO) -> list[str]:
    """Write calls into a CSV file for each kind, and other rows to ``file``; return the kinds."""
    paths = {kind: Path(folder, kind) for kind in _CALL_KINDS}
    with contextlib.ExitStack() as stack:
        files = {kind: stack.enter_context(path.open("wb")) for kind, path in paths.items()}
        for proc, packed in rows:
            lines, other_rows = split_rows(proc, unpack_rows(packed))
            for kind, data in lines.items():
                files[kind].write(data)
            file.write(pack_lines(row_objects(proc, other_rows)))
    return [kind for kind, path in paths.items() if path.stat().st_size]


def _types(columns: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{name}': '{ROW_COLUMNS[name]}'" for name in columns) + "}"


def _in_words(error: duckdb.Error) -> str:
    text = str(error)
    if "disabled by configuration" in text or "Loading external extensions" in text:
        return (
            "refused: a query reads the tables of telemetry, and no files "
            f"({text.splitlines()[0].removeprefix('Permission Error: ')})"
        )
    return text.rstrip()


def kept_rows(runs: Sequence[Path]) -> list[bytes]:
    """Return the packed rows in the folders of runs. A damaged file is left out."""
    packed = []
    for run in runs:
        for path in sorted((run / TELEMETRY).glob(f"*{PACKED}")):
            try:
                data = read_kept(path, run)
                unpack(data)
            except Exception:
                continue
            packed.append(data)
    return packed


def live_rows(looks: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the hosts' current state (`MeshVisit.look`), as packed rows."""
    rows: list[dict[str, Any]] = []
    for host in looks:
        total = host.get("cpu_total") or 0
        rows.append(
            {"k": "now_host", "host": host.get("host"), "pid": host.get("pid"),
             "cpu": host["cpu_busy"] / total if total else None, "mem_used": host.get("mem_used"),
             "mem_total": host.get("mem_total"), "num_gpus": len(host.get("gpus", ())),
             "url": host["url"], "text": host.get("error")}
        )  # fmt: skip
        for proc in host.get("procs", ()):
            rows += _proc_rows(proc)
    return pack_lines(rows)


def _proc_rows(proc: Mapping[str, Any]) -> list[dict[str, Any]]:
    uid, now = proc["uid"], proc.get("now", 0)
    status = "hangs" if proc["hangs"] else "up" if proc["is_up"] else "starting"
    rows: list[dict[str, Any]] = [
        {"k": "now_proc", "p": uid, "t": now, "cpu_seconds": proc.get("cpu_seconds"),
         "rss": proc.get("rss"), "generation": proc.get("generation"), "status": status}
    ]  # fmt: skip
    for actor in proc.get("actors", ()):
        doing = actor["doing"][0] if actor["doing"] else {}
        rows.append(
            {"k": "now_actor", "p": uid, "t": now, "doing": doing.get("method"),
             "seconds": doing.get("seconds"), **{name: actor[name] for name in _ACTOR_COLUMNS}}
        )  # fmt: skip
    for entry in proc.get("flight", {}).get("entries", ()):
        rows.append(
            {"k": "collective", "p": uid, "t": now, "rank": proc["flight"]["rank"],
             "group": entry["group"], "seq": entry["seq"], "op": entry["op"],
             "text": json.dumps(entry["sizes"]), "done": entry["done"], "place": entry["place"],
             "epoch": entry["created_ns"]}
        )  # fmt: skip
    return rows


_ACTOR_COLUMNS = (
    "mesh", "rank", "name", "class", "labels", "sizes", "owner", "status", "queue", "num_ended",
    "num_failed",
)  # fmt: skip


class QueryEngine:
    """Answers queries about a running mesh.

    Each query is answered from the records that the processes have at its time.
    """

    def __init__(self, visit: Callable[[], MeshVisit], runs: Sequence[Path] = ()) -> None:
        self._visit = visit
        self._runs = tuple(runs)

    def tables(self, sql: str = "") -> QueryTables:
        """Gather and return all tables; those of stacks have rows only if ``sql`` names them."""
        visit = self._visit()
        drained = visit.drain()
        looks = visit.look(flight=True)
        packed = [*drained.about, live_rows(looks)]
        if "stack" in sql.lower():
            packed.append(pack_lines(stack_rows(visit.stacks(procs_of(looks)))))
        if "pyspy" in sql.lower():
            now = time.monotonic_ns()
            for uid, (dump, error) in visit.py_spy(procs_of(looks)).items():
                packed.append(pack_lines(dump_rows(uid, dump, error, now)))
        return QueryTables(packed, self._runs, drained.rows)

    def table(self, sql: str, timeout: float | None = None) -> QueryTable:
        """Return the answer to ``sql``.

        Raises ``QueryError``, also if it takes longer than ``timeout`` seconds.
        """
        with self.tables(sql) as tables:
            return tables.query(sql, seconds=math.inf if timeout is None else timeout)

    def query(self, sql: str, timeout: float | None = None) -> dict[str, list[dict[str, Any]]]:
        """Return the answer as PyTorch's Monarch returns it: ``{"rows": [{column: value}]}``."""
        return {"rows": self.table(sql, timeout).rows}


def split_rows(proc: str, rows: list[list[Any]]) -> tuple[dict[str, bytes], list[list[Any]]]:
    """Split the rows of a process into CSV lines of calls, by kind, and all other rows.

    Calls that CSV would change are among the other rows.
    """
    calls_by_kind: dict[str, list[list[Any]]] = {kind: [] for kind in _CALL_KINDS}
    other_rows: list[list[Any]] = []
    for row in rows:
        calls_by_kind.get(row[0], other_rows).append(row)
    lines = {}
    for kind, calls in calls_by_kind.items():
        data = _lines(proc, kind, calls)
        if data is None:
            other_rows += calls
        elif data:
            lines[kind] = data
    return lines, other_rows


def _lines(proc: str, kind: str, rows: list[list[Any]]) -> bytes | None:
    width = len(COLUMNS[kind]) + 1
    if any(len(row) != width for row in rows):
        return None  # Of another version.
    # A list in JSON is such a line, but for its brackets, as long as nothing in it is escaped.
    try:
        begins = msgspec.json.encode(proc) + b","
        data = msgspec.json.Encoder().encode_lines(rows)
    except UnicodeEncodeError:
        return None
    if b"\\" in data or b"\\" in begins:
        return None
    # A bracket before the kind, and one before the end of a line, are never inside of a text.
    name = msgspec.json.encode(kind)
    return data.replace(b"[" + name, begins + name).replace(b"]\n", b"\n")
