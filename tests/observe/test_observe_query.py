"""SQL over what processes remember."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, span, this_host
from monarch.config import configured
from monarch.errors import ActorError
from monarch.job import LocalJob, TelemetryConfig
from monarch.observe.query import QueryEngine, QueryError, QueryTables, kept_rows
from monarch.observe.snapshot_tables import SNAPSHOT_VIEWS
from monarch.observe.tables import READY, VIEWS
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.runtime.observe import py_spy
from monarch.runtime.observe.drain import pack_lines
from tests.support import Program, wait_for

pytest.importorskip("duckdb")
SECONDS = 60.0


class Doomed(Actor):
    def __init__(self) -> None:
        raise RuntimeError("doomed from the start")

    @endpoint
    def exists(self) -> bool:
        return True


class Worker(Actor):
    @endpoint
    def step(self, value: int) -> int:
        with span("inner"):
            return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.005)


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 2})
    yield made
    made.stop().get(timeout=SECONDS)


def visit() -> MeshVisit:
    return MeshVisit(client().node, hosts_of(client()))


def engine() -> QueryEngine:
    return QueryEngine(visit)


def test_calls_with_their_senders_and_their_outcome(procs: ProcMesh) -> None:
    workers = procs.spawn("worker", Worker)
    for value in range(3):
        workers.step.call(value).get(timeout=SECONDS)
    with pytest.raises(ActorError):
        workers.fail.call().get(timeout=SECONDS)
    with engine().tables() as tables:
        found = tables.query(
            "SELECT method, ok, count(*) AS n, count(DISTINCT rank) AS ranks, min(sender_proc) AS"
            " who FROM calls WHERE actor = 'worker' AND method <> '' GROUP BY ALL ORDER BY method"
        ).rows
        assert found == [
            {"method": "fail", "ok": False, "n": 2, "ranks": 2, "who": "client"},
            {"method": "step", "ok": True, "n": 6, "ranks": 2, "who": "client"},
        ]
        spans = tables.query("SELECT count(*) AS n FROM spans WHERE name = 'inner'").rows
        assert spans == [{"n": 6}]
        sent = tables.query("SELECT num, ok FROM sent WHERE method = 'fail'").rows
        assert sent == [{"num": 2, "ok": False}]


# The questions of upstream's telemetry page, and what has to be in their answers.
UPSTREAMS: dict[str, tuple[str, Callable[[list[Any]], bool]]] = {
    "statuses of the quick start": (
        """SELECT a.full_name, s.new_status, s.reason, s.timestamp_us
        FROM actor_status_events AS s JOIN actors AS a ON a.id = s.actor_id
        ORDER BY s.timestamp_us DESC LIMIT 50""",
        lambda rows: {row["new_status"] for row in rows} >= {"Idle", "Failed"},
    ),
    "tables": (
        "SELECT table_name FROM information_schema.tables ORDER BY table_name",
        lambda rows: {row["table_name"] for row in rows} >= {
            "actor_status_events", "actors", "events", "meshes", "metric_gauges", "metric_sums",
            "metric_histograms", "message_status_events", "messages", "sent_messages", "spans",
            "span_events", "actor_failures", "actor_inbound_orderings", "actor_nodes", "children",
            "host_nodes", "nodes", "ordering_sessions", "proc_nodes", "resolution_errors",
            "root_nodes", "snapshots", "active_handlers", "actor_executions", "pyspy_dumps",
            "pyspy_frames", "pyspy_local_variables", "pyspy_stack_traces",
        },
    ),
    "status counts": (
        """SELECT new_status, COUNT(*) AS count FROM actor_status_events
        GROUP BY new_status ORDER BY count DESC""",
        lambda rows: rows[0]["new_status"] == "Idle" and rows[0]["count"] >= 2,
    ),
    "failures": (
        """SELECT a.full_name, s.reason, s.timestamp_us
        FROM actor_status_events AS s JOIN actors AS a ON a.id = s.actor_id
        WHERE s.new_status = 'Failed' ORDER BY s.timestamp_us DESC LIMIT 100""",
        lambda rows: any("doomed" in row["reason"] for row in rows),
    ),
    "deliveries": (
        """SELECT status, COUNT(*) AS count FROM message_status_events
        GROUP BY status ORDER BY count DESC""",
        lambda rows: {row["status"] for row in rows} >= {"queued", "active", "complete"},
    ),
    "posts": (
        """SELECT scope_name, SUM(sum_u64) AS mailbox_posts FROM metric_sums
        WHERE name = 'mailbox.posts' AND temporality = 'delta' AND sum_u64 IS NOT NULL
        GROUP BY scope_name ORDER BY mailbox_posts DESC""",
        lambda rows: rows[0]["mailbox_posts"] >= 2,
    ),
    "nodes of the snapshot": (
        """SELECT n.node_kind, COUNT(*) AS count FROM nodes n
        JOIN snapshots s ON s.snapshot_id = n.snapshot_id GROUP BY n.node_kind""",
        lambda rows: {row["node_kind"] for row in rows} == {"root", "host", "proc", "actor"},
    ),
    "who hangs below whom": (
        """SELECT p.proc_name, a.actor_status, a.last_message_handler, a.queue_depth
        FROM children c JOIN proc_nodes p ON p.node_id = c.parent_id
        JOIN actor_nodes a ON a.node_id = c.child_id WHERE a.actor_type LIKE '%Worker'""",
        lambda rows: ("running", "wait") in {
            (row["actor_status"], row["last_message_handler"]) for row in rows
        },
    ),
    "failed actors of the snapshot": (
        "SELECT failure_error_message, failure_occurred_at FROM actor_failures",
        lambda rows: any("doomed" in row["failure_error_message"] for row in rows),
    ),
    "stacks by py-spy": (
        """SELECT f.name, f.filename, d.proc_ref FROM pyspy_frames f
        JOIN pyspy_stack_traces t ON t.dump_id = f.dump_id AND t.thread_id = f.thread_id
        JOIN pyspy_dumps d ON d.dump_id = f.dump_id WHERE f.frame_depth < 3""",
        lambda rows: not PY_SPY or any(row["name"].endswith("wait") for row in rows),
    ),
    "why py-spy saw nothing": (
        "SELECT capture_mode, warnings_json FROM pyspy_dumps",
        lambda rows: {row["capture_mode"] for row in rows} == {
            "python_only" if PY_SPY else "failed"
        },
    ),
}  # fmt: skip
PY_SPY = not py_spy.dump(os.getpid())[1]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryTables]:
    """Of workers of which one has failed, and others wait; gathered once."""
    procs = this_host().spawn_procs({"gpus": 2})
    workers = procs.spawn("seen", Worker)
    workers.step.call(1).get(timeout=SECONDS)
    doomed = procs.slice(gpus=0).spawn("doomed", Doomed)
    doomed.exists.call().exception(timeout=SECONDS)
    go = tmp_path_factory.mktemp("seen") / "go"
    held = workers.wait.call(str(go))

    def all_wait() -> bool:
        (look,) = visit().look()
        doing = [one["doing"] for proc in look["procs"] for one in proc["actors"]]
        return sum(bool(one) and one[0]["method"] == "wait" for one in doing) == 2

    wait_for(all_wait)
    with engine().tables("stacks and pyspy_dumps") as tables:
        go.touch()
        held.get(timeout=SECONDS)
        procs.stop().get(timeout=SECONDS)
        yield tables


@pytest.mark.parametrize("about", UPSTREAMS)
def test_the_questions_of_upstreams_page_answer(seen: QueryTables, about: str) -> None:
    sql, is_right = UPSTREAMS[about]
    rows = seen.query(sql).rows
    assert is_right(rows), rows


def test_stacks_of_ranks_are_rows(seen: QueryTables) -> None:
    found = seen.query(
        "SELECT rank, method, function, source FROM stacks WHERE actor = 'seen' AND depth = 0 "
        "ORDER BY rank"
    ).rows
    assert [row["rank"] for row in found] == [0, 1]
    assert {row["method"] for row in found} == {"wait"}
    assert all("wait" in row["function"] for row in found)


def test_tables_of_ours_tell_shapes_names_and_who_waits(seen: QueryTables) -> None:
    names = seen.query(
        "SELECT DISTINCT a.display_name FROM actor_status_events e JOIN actors a "
        "ON a.id = e.actor_id WHERE a.name = 'seen' ORDER BY 1"
    ).rows
    assert [row["display_name"] for row in names] == ["seen 0", "seen 1"]
    states = seen.query(
        "SELECT e.status, count(*) AS n FROM message_status_events e JOIN messages m "
        "ON m.id = e.message_id JOIN actors a ON a.id = m.to_actor_id "
        "WHERE m.endpoint = 'step' AND a.name = 'seen' GROUP BY 1 ORDER BY 1"
    ).rows
    assert states == [
        {"status": "active", "n": 2}, {"status": "complete", "n": 2},
        {"status": "queued", "n": 2},
    ]  # fmt: skip
    shape = seen.query("SELECT class, shape_json FROM meshes WHERE given_name = 'seen'")
    assert shape[0]["class"].endswith("Worker")
    assert "gpus" in shape[0]["shape_json"]
    queued = seen.query("SELECT rank, status, doing FROM queues WHERE actor = 'seen'").rows
    assert {"rank": 0, "status": "running", "doing": "wait"} in queued
    for name in [*VIEWS, *SNAPSHOT_VIEWS, "metrics", "run_events"]:
        seen.query(f'SELECT * FROM "{name}"')
    for name in READY:
        assert seen.query(name).columns
    assert "calls" in seen.names()
    assert "rows" not in seen.names()


@pytest.fixture(scope="module")
def nothing() -> Iterator[QueryTables]:
    with QueryTables([]) as tables:
        yield tables


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY calls TO '/tmp/monarch-test-of-queries'",
        "ATTACH '/tmp/monarch-test-of-queries.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/monarch-test-of-queries'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_json('/proc/self/environ')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM read_parquet('https://example.com/x.parquet')",
        "SELECT getenv('HOME')",
        "CREATE SECRET s (TYPE s3)",
        "SET temp_directory = '/tmp/monarch-test-of-queries'",
    ],
)
def test_sql_that_would_touch_files_is_refused(nothing: QueryTables, sql: str) -> None:
    with pytest.raises(QueryError):
        nothing.query(sql)
    assert not list(Path("/tmp").glob("monarch-test-of-queries*"))


def test_a_mistake_in_the_sql_is_told_and_nothing_breaks(nothing: QueryTables) -> None:
    with pytest.raises(QueryError, match="syntax error"):
        nothing.query("SELEC 1")
    with pytest.raises(QueryError, match="nothing_such"):
        nothing.query("SELECT * FROM nothing_such")
    assert nothing.query("SELECT 1 AS one").rows == [{"one": 1}]


@pytest.mark.long
def test_a_killed_procs_last_rows_are_there_where_hosts_keep_them(faults: list[Any]) -> None:
    look = visit()
    procs = this_host().spawn_procs({"gpus": 2})
    look.keep(60)
    try:
        workers = procs.spawn("worker", Worker)
        pids = list(workers.pid.call().get(timeout=SECONDS).values())

        def num_kept() -> int:
            sql = "SELECT count(*) AS n FROM calls WHERE method = 'pid'"
            return int(engine().table(sql)[0]["n"])

        assert num_kept() == 2  # A question takes them, and the host has them from here on.
        os.kill(pids[1], signal.SIGKILL)
        wait_for(lambda: workers.slice(gpus=1).step.call(1).exception(timeout=SECONDS))
        with engine().tables() as tables:
            assert tables.query("SELECT rank FROM calls WHERE method = 'pid' ORDER BY 1").rows == [
                {"rank": 0}, {"rank": 1},
            ]  # fmt: skip
            why = tables.query("SELECT who, reason FROM failures WHERE kind = 'proc'").rows
            assert any("SIGKILL" in one["reason"] for one in why)
    finally:
        look.keep(0)
        procs.stop().get(timeout=SECONDS)


def test_without_events_nothing_is_kept_and_questions_still_answer() -> None:
    with configured(telemetry_events=0):
        procs = this_host().spawn_procs({"gpus": 1})
        worker = procs.spawn("quiet", Worker)
        worker.step.call(1).get(timeout=SECONDS)
        found = engine().table("SELECT count(*) AS n FROM calls WHERE actor = 'quiet'")
        assert found.rows == [{"n": 0}]
        assert engine().table("SELECT actor FROM queues WHERE actor = 'quiet'").rows
        procs.stop().get(timeout=SECONDS)


def test_a_damaged_file_in_a_runs_folder_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    good = pack_lines([{"k": "failure", "p": "x", "t": 1, "name": "trainers 0", "text": "it"}])
    (folder / "1.jsonl.zst").write_bytes(good)
    (folder / "2.jsonl.zst").write_bytes(good[: len(good) // 2])
    (folder / "3.jsonl.zst").write_bytes(b"not packed at all")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    with QueryTables(kept_rows([tmp_path]), [tmp_path]) as tables:
        assert [row["who"] for row in tables.query("failed")] == ["trainers 0"]
        assert tables.query("SELECT step, loss FROM metrics").rows == [{"step": 1, "loss": 0.5}]


def test_a_jobs_state_answers_once_telemetry_is_enabled(procs: ProcMesh) -> None:
    procs.spawn("asked", Worker).step.call(1).get(timeout=SECONDS)
    job = LocalJob().enable_telemetry(TelemetryConfig(retention_secs=60))
    state = job.state(cached_path=None)
    assert state.query_engine_client is not None
    sql = "SELECT DISTINCT method FROM calls WHERE actor = 'asked' AND method <> ''"
    assert state.query_engine_client.query(sql) == {"rows": [{"method": "step"}]}
    table = state.query(sql)
    assert "step" in repr(table)
    assert "<td>step</td>" in table._repr_html_()
    visit().keep(0)


PAGED = """
    import json, urllib.error, urllib.request
    from monarch.job import LocalJob, TelemetryConfig

    config = TelemetryConfig(include_dashboard=True, dashboard_port=0)
    state = LocalJob().enable_telemetry(config).state(cached_path=None)
    page, _, token = state.dashboard_url.partition("/#t=")
    try:
        urllib.request.urlopen(f"{page}/api/mesh", timeout=20)
    except urllib.error.HTTPError as error:
        print("stranger", error.code)
    told = {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"{page}/api/mesh", headers=told)
    with urllib.request.urlopen(asked, timeout=20) as answer:
        print("live", json.load(answer)["is_live"])
    print("page", page)
"""


@pytest.mark.long
def test_a_jobs_page_is_served_where_telemetry_includes_it_and_ends_with_the_program(
    program: Callable[..., Program],
) -> None:
    pytest.importorskip("starlette")
    running = program(PAGED)
    assert running.wait() == 0, running.story()
    assert running.lines[-3:-1] == ["stranger 403", "live True"]
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(running.lines[-1].removeprefix("page "), timeout=SECONDS)
