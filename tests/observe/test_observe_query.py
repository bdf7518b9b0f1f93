"""SQL over what processes remember."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, span, this_host
from monarch.config import configured
from monarch.errors import ActorError
from monarch.job import LocalJob, TelemetryConfig
from monarch.observe.query import QueryEngine, QueryError, QueryTables, kept_rows
from monarch.observe.tables import READY, VIEWS
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.runtime.observe.drain import pack_lines
from tests.support import wait_for

pytest.importorskip("duckdb")
SECONDS = 20


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


def test_the_queries_of_upstreams_page_answer(procs: ProcMesh, tmp_path: Path) -> None:
    workers = procs.spawn("worker", Worker)
    workers.step.call(1).get(timeout=SECONDS)
    held = workers.wait.call(str(tmp_path / "go"))
    with engine().tables() as tables:
        status = tables.query(
            "SELECT new_status, count(*) AS n FROM actor_status_events GROUP BY new_status"
        ).rows
        assert {"new_status": "idle", "n": 2} in status
        names = tables.query(
            "SELECT DISTINCT a.display_name FROM actor_status_events e JOIN actors a "
            "ON a.id = e.actor_id WHERE a.name = 'worker' ORDER BY 1"
        ).rows
        assert [row["display_name"] for row in names] == ["worker 0", "worker 1"]
        states = tables.query(
            "SELECT e.status, count(*) AS n FROM message_status_events e JOIN messages m "
            "ON m.id = e.message_id WHERE m.endpoint = 'step' GROUP BY 1 ORDER BY 1"
        ).rows
        assert states == [
            {"status": "active", "n": 2}, {"status": "complete", "n": 2},
            {"status": "queued", "n": 2},
        ]  # fmt: skip
        deltas = tables.query(
            "SELECT proc, max(value) - min(value) AS delta FROM metric_sums "
            "WHERE name = 'mailbox.posts' GROUP BY proc"
        )
        assert len(deltas) >= 2
        known = {
            row["table_name"]
            for row in tables.query("SELECT table_name FROM information_schema.tables")
        }
        assert {"actors", "meshes", "messages", "sent_messages", "spans", "events"} <= known
        shape = tables.query("SELECT class, shape_json FROM meshes WHERE given_name = 'worker'")
        assert shape[0]["class"].endswith("Worker")
        assert "gpus" in shape[0]["shape_json"]
        queued = tables.query("SELECT rank, status, doing FROM queues ORDER BY rank").rows
        assert {"rank": 0, "status": "running", "doing": "wait"} in queued
    (tmp_path / "go").touch()
    held.get(timeout=SECONDS)


def test_every_table_and_every_ready_question_answers(procs: ProcMesh) -> None:
    procs.spawn("worker", Worker).step.call(1).get(timeout=SECONDS)
    with engine().tables() as tables:
        for name in [*VIEWS, "metrics", "run_events"]:
            tables.query(f'SELECT * FROM "{name}"')
        for name in READY:
            assert tables.query(name).columns
        assert "calls" in tables.names()
        assert "rows" not in tables.names()


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
    ],
)
def test_sql_that_would_touch_files_is_refused(sql: str) -> None:
    with QueryTables([]) as tables, pytest.raises(QueryError):
        tables.query(sql)
    assert not list(Path("/tmp").glob("monarch-test-of-queries*"))


def test_a_mistake_in_the_sql_is_told_and_nothing_breaks() -> None:
    with QueryTables([]) as tables:
        with pytest.raises(QueryError, match="syntax error"):
            tables.query("SELEC 1")
        with pytest.raises(QueryError, match="nothing_such"):
            tables.query("SELECT * FROM nothing_such")
        assert tables.query("SELECT 1 AS one").rows == [{"one": 1}]


def test_a_killed_procs_last_rows_are_there_where_hosts_keep_them(
    procs: ProcMesh, faults: list[Any]
) -> None:
    look = visit()
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
            (why,) = tables.query("SELECT who, reason FROM failures WHERE kind = 'proc'").rows
            assert "SIGKILL" in why["reason"]
    finally:
        look.keep(0)


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
    procs.spawn("worker", Worker).step.call(1).get(timeout=SECONDS)
    job = LocalJob().enable_telemetry(TelemetryConfig(retention_secs=60))
    state = job.state(cached_path=None)
    assert state.query_engine_client is not None
    sql = "SELECT DISTINCT method FROM calls WHERE actor = 'worker' AND method <> ''"
    assert state.query_engine_client.query(sql) == {"rows": [{"method": "step"}]}
    table = state.query(sql)
    assert "step" in repr(table)
    assert "<td>step</td>" in table._repr_html_()
    visit().keep(0)
