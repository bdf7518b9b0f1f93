"""The page's server: who may ask it, and what it tells."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from monarch.cli.observe.target import StayHere
from monarch.errors import JobError
from monarch.observe.query import QueryTables
from tests.cli.runs_folder import add_row, two_runs
from tests.observe.test_observe_top import host

pytest.importorskip("starlette")
pytest.importorskip("duckdb")
testclient = pytest.importorskip("starlette.testclient")

from monarch.runs.record.folder import runs_in  # noqa: E402
from monarch.view.run_view import PageSource  # noqa: E402
from monarch.view.server import PageServer  # noqa: E402


@pytest.fixture
def asked() -> list[tuple[str, Sequence[str]]]:
    return []


@pytest.fixture
def server(tmp_path: Path, asked: list[tuple[str, Sequence[str]]]) -> Iterator[PageServer]:
    two_runs(tmp_path)

    def act(what: str, uids: Sequence[str]) -> str:
        if what not in ("stacks", "stop"):
            raise JobError("not that")
        asked.append((what, list(uids)))
        return f"{what} done"

    source = PageSource(
        title="demo",
        look=lambda: [host(3, odd=[1])],
        tables=lambda sql: QueryTables([]),
        act=act,
        runs=lambda: runs_in(tmp_path / "runs"),
    )
    made = PageServer(source)
    yield made
    made.close()


@pytest.fixture
def browser(server: PageServer) -> Any:
    """One that was given the token."""
    made = testclient.TestClient(server.app, base_url=f"http://127.0.0.1:{server.port}")
    answer = made.post("/session", content=server.gate.token)
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    return made


PATHS = ["/api/mesh", "/api/runs", "/api/runs/x", "/metrics", "/api/stream"]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_is_told_anything_without_the_token(server: PageServer, path: str) -> None:
    stranger = testclient.TestClient(server.app, base_url=f"http://127.0.0.1:{server.port}")
    assert stranger.get(path).status_code == 403
    assert stranger.get(path, headers={"Cookie": "monarch_view=guess"}).status_code == 403
    assert stranger.post("/session", content="guess").status_code == 403
    assert stranger.post("/api/act/stop", json=["p0"]).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}],
    ids=str,
)
def test_another_sites_page_gets_nothing_even_with_the_cookie(
    browser: Any, headers: dict[str, str], asked: list[Any]
) -> None:
    assert browser.get("/api/mesh", headers=headers).status_code == 403
    assert browser.post("/api/act/stop", json=["p0"], headers=headers).status_code == 403
    assert browser.get("/", headers=headers).status_code == 403
    assert asked == []


def test_the_page_loads_from_nowhere_else(browser: Any) -> None:
    page = browser.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    for name in (
        "page.js",
        "parts.js",
        "page.css",
        "uPlot.iife.min.js",
        "uPlot.min.css",
        "uPlot.LICENSE",
    ):
        assert browser.get(f"/static/{name}").status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert browser.get("/static/../server.py").status_code == 404


def test_the_mesh_the_runs_and_their_curves(browser: Any) -> None:
    mesh = browser.get("/api/mesh").json()
    assert mesh["num_ranks"] == 3
    assert [group["ranks"] for group in mesh["groups"]] == ["1", "0, 2"]
    runs = browser.get("/api/runs").json()
    assert [run["values"]["loss"] for run in runs] == [2.5, 1.0]
    curves = browser.get(f"/api/runs/{runs[1]['name']}").json()
    (loss,) = (chart for chart in curves["charts"] if chart["name"] == "loss")
    assert loss["values"] == [3.0, 2.0, 1.0]
    assert {event["kind"] for event in curves["story"]["events"]} == {"begun", "died", "ended"}
    assert browser.get("/api/runs/..%2f..%2fetc").status_code == 404


def test_queries_answer_and_those_of_files_do_not(browser: Any) -> None:
    found = browser.post("/api/query", content="SELECT 1 AS one").json()
    assert found == {"columns": ["one"], "rows": [{"one": 1}], "num_rows": 1}
    refused = browser.post("/api/query", content="SELECT * FROM read_text('/etc/passwd')")
    assert refused.status_code == 400
    assert "refused" in refused.json()["error"]


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing"], ids=repr)
def test_where_there_is_no_sql_that_is_said(browser: Any, sql: str) -> None:
    refused = browser.post("/api/query", content=sql)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("there is no SQL in that")


def test_figures_that_are_no_numbers_are_shown_as_such(browser: Any, tmp_path: Path) -> None:
    """As a loss that went wrong: that is when the page is wanted."""
    add_row(runs_in(tmp_path / "runs")[0], "metrics.jsonl", step=4, loss=float("nan"))
    runs = {run["name"]: run for run in browser.get("/api/runs").json()}
    name = runs_in(tmp_path / "runs")[0].name
    assert runs[name]["values"]["loss"] == "nan"
    (loss, *_) = browser.get(f"/api/runs/{name}").json()["charts"]
    assert (loss["values"], loss["last"]) == ([3.0, 2.0, 1.0], "nan")
    found = browser.post("/api/query", content="SELECT 'inf'::DOUBLE AS most").json()
    assert found["rows"] == [{"most": "inf"}]


def test_what_fails_within_is_told_to_the_page(server: PageServer, browser: Any) -> None:
    def fail() -> Any:
        raise ValueError("a damaged run")

    object.__setattr__(server._source, "runs", fail)
    answer = browser.get("/api/runs")
    assert (answer.status_code, answer.json()) == (500, {"error": "ValueError: a damaged run"})


def test_buttons_act_by_post_alone(browser: Any, asked: list[Any]) -> None:
    assert browser.get("/api/act/stop").status_code == 405
    assert browser.post("/api/act/stop", content='["p0"]').status_code == 400
    assert browser.post("/api/act/stop", json={"no": "list"}).status_code == 200
    asked.clear()
    assert browser.post("/api/act/stop", json=["p0", "p1"]).json() == {"text": "stop done"}
    assert asked == [("stop", ["p0", "p1"])]
    assert browser.post("/api/act/other", json=[]).json() == {"error": "not that"}


def test_a_page_that_is_read_only_has_no_hands(tmp_path: Path) -> None:
    source = PageSource(
        title="run", look=None, tables=lambda sql: QueryTables([]), act=lambda what, uids: what,
        runs=lambda: [], is_read_only=True,
    )  # fmt: skip
    server = PageServer(source)
    made = testclient.TestClient(server.app, base_url=f"http://localhost:{server.port}")
    made.post("/session", content=server.gate.token)
    assert made.post("/api/act/stop", json=[]).status_code == 403
    assert made.post("/api/act/stacks", json=[]).json() == {"text": "stacks"}
    assert made.get("/api/mesh").json()["is_live"] is False
    server.close()


def test_prometheus_reads_it_with_the_token(server: PageServer) -> None:
    scraper = testclient.TestClient(server.app, base_url=f"http://127.0.0.1:{server.port}")
    told = {"Authorization": f"Bearer {server.gate.token}"}
    text = scraper.get("/metrics", headers=told).text
    assert 'monarch_queue_messages{host="host0",actor="trainers"} 6' in text
    assert 'metric="loss"} 1.0' in text
    ranks = scraper.get("/metrics?by=rank", headers=told).text
    assert 'monarch_queue_messages{host="host0",actor="trainers",rank="2"} 2' in ranks
    parser = pytest.importorskip("prometheus_client.parser")
    families = {one.name for one in parser.text_string_to_metric_families(text)}
    assert {"monarch_host_up", "monarch_ranks", "monarch_run_step"} <= families


def test_the_stream_begins_with_the_whole_state(server: PageServer) -> None:
    """One event; the connection stays open until the page goes."""

    async def first() -> str:
        response = await server._stream(_Connected())  # type: ignore[arg-type]
        async for part in response.body_iterator:  # type: ignore[attr-defined]
            return str(part)
        return ""

    told = asyncio.run(first())
    assert json.loads(told.removeprefix("data: "))["num_ranks"] == 3


def test_the_server_ends_while_a_page_is_open_and_hosts_are_silent() -> None:
    """At once, and without a word on the terminal."""
    asked, answer = threading.Event(), threading.Event()

    def look() -> list[Any]:
        asked.set()
        answer.wait(30)
        return []

    server = PageServer(
        PageSource(
            title="silent", look=look, tables=lambda sql: QueryTables([]),
            act=lambda what, uids: what, runs=lambda: [],
        )
    )  # fmt: skip

    async def open_and_end() -> str:
        response = await server._stream(_Connected())  # type: ignore[arg-type]
        parts = asyncio.ensure_future(anext(response.body_iterator, "ended"))  # type: ignore[attr-defined]
        await asyncio.to_thread(asked.wait, 30)
        server._ending.set()
        try:
            return str(await asyncio.wait_for(parts, 10))
        finally:
            answer.set()

    assert asyncio.run(open_and_end()) == "ended"
    server.close()


def test_a_view_that_stays_open_sees_what_has_begun_and_leaves_what_has_ended() -> None:
    gone: list[Any] = []

    class Visit:
        def go_to(self, hosts: Any) -> None:
            gone.append(hosts)

        def look(self, *, flight: bool) -> list[Any]:
            return [flight]

    now: dict[str, Any] = {"run-1": "address"}
    stay = StayHere(Visit(), lambda: dict(now))  # type: ignore[arg-type]
    looks = [stay.look() for _ in range(6)]
    assert looks == [[True], [False], [False], [False], [False], [True]]
    now = {"run-2": "another"}
    for _ in range(5):
        stay.look()
    assert gone == [{"run-2": "another"}]


class _Connected:
    async def is_disconnected(self) -> bool:
        return False


def test_a_stranger_s_long_body_is_not_read(server: PageServer) -> None:
    """He has no token, and could fill the memory of the page otherwise."""
    parts, told = [0], []

    async def receive() -> dict[str, Any]:
        parts[0] += 1
        return {"type": "http.request", "body": b"x" * 65536, "more_body": parts[0] < 5000}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/session", "raw_path": b"/session", "query_string": b"",
        "headers": [(b"host", f"127.0.0.1:{server.port}".encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", server.port),
    }  # fmt: skip
    asyncio.run(server.app(scope, receive, send))
    assert told[0]["status"] in (400, 403)
    assert parts[0] < 10


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000000)",
        "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range < b.range",
    ],
)
def test_a_query_without_end_is_stopped(
    server: PageServer, browser: Any, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr(server, "sql_seconds", 0.3)
    refused = browser.post("/api/query", content=sql)
    assert refused.status_code == 400
    assert "took longer than 0.3 s" in refused.json()["error"]
    assert browser.post("/api/query", content="SELECT 1 AS one").json()["rows"] == [{"one": 1}]


def test_a_large_answer_is_cut(browser: Any) -> None:
    found = browser.post("/api/query", content="SELECT repeat('x', 1000000) AS t").json()
    assert len(found["rows"][0]["t"]) == 10_000
    found = browser.post("/api/query", content="SELECT * FROM range(100000000000)").json()
    assert found["num_rows"] == 5_000
