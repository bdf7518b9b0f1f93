"""The server of `monarch dashboard`: a page on loopback, its data, and its buttons.

It keeps a quarter of an hour of counters, and the steps and last lines of the few runs that were
asked for last. All else is looked up on request; one look a second serves all open pages, and there
is none while no page is open.

Only the browser that got the token may ask. The token is made when the server starts. It is in the
fragment of the printed URL, which no browser sends. The page exchanges it for a cookie that scripts
cannot read and that no other site's request carries. ``Host`` and ``Origin`` are checked against
the server's own address, so that another name for this machine (DNS rebinding), or another site's
page, gets nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from monarch.core.rank_sets import BadRanks, parse_set
from monarch.errors import MonarchError
from monarch.observe.json_rows import json_text
from monarch.observe.prometheus import exposition
from monarch.runs.page.page_files import FOLDER, STATIC
from monarch.runs.record.folder import RunFolder
from monarch.view.live_view import LiveView
from monarch.view.run_view import PageSource, RunViews

_EVERY_SECONDS = 1.0
_MOST_TOKEN = 100
_MOST_SQL = 100_000
_MOST_TEXT = 10_000
_MOST_ROWS = 5_000
_MOST_RANK = 1_000_000
_OPEN = ("/", "/session")
# Actions that change nothing, which a read-only page allows too.
LOOKS = ("stacks", "hang", "log")


COOKIE = "monarch_view"
_NAMES = ("127.0.0.1", "localhost", "[::1]")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageGate:
    """Decides which requests to a server are allowed; ``port`` is where it listens."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)
        self._hosts = {f"{name}:{port}" for name in _NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    def is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether a request names another host, or comes from another site's page."""
        origin = headers.get("origin")
        return headers.get("host", "") not in self._hosts or (
            origin is not None and origin not in self._origins
        )

    def cookie_for(self, token: str) -> str | None:
        """Return the cookie for the right token; ``None`` for a wrong one."""
        return self._cookie if _same(token, self.token) else None

    def is_known(self, cookie: str | None, authorization: str = "") -> bool:
        """Whether a request has the cookie; or the token as a bearer, as Prometheus sends it."""
        bearer = authorization.removeprefix("Bearer ") if authorization else ""
        return _same(cookie or "", self._cookie) or _same(bearer, self.token)


def _same(text: str, other: str) -> bool:
    return hmac.compare_digest(text.encode(), other.encode())


def _json(data: object, status: int = 200) -> Response:
    return Response(json_text(data), status, media_type="application/json")


class _UntilEnded(uvicorn.Server):
    """A server that first notes that it is ending, so that no stream is cut off in the middle."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)


class PageServer:
    """Serves the page on loopback, at ``port``; 0 is any free port. Raises ``OSError``. A query may
    take ``sql_seconds``."""

    sql_seconds = 10.0

    def __init__(self, source: PageSource, port: int = 0) -> None:
        self._source = source
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.gate = PageGate(self.port)
        self._view = LiveView()
        self._run_views = RunViews(source.locate)
        #: The last snapshot, and when it was made, by the monotonic clock.
        self._snapshot: dict[str, Any] = {}
        self._looked_at = 0.0
        #: Held by the request that looks at the hosts; others wait for its snapshot.
        self._looking = asyncio.Lock()
        #: Set when the server ends, so that open streams end.
        self._ending = asyncio.Event()
        self.app = self._make_app()

    @property
    def url(self) -> str:
        """Return the URL for a person's browser, with the token."""
        return f"http://127.0.0.1:{self.port}/#t={self.gate.token}"

    def run(self, started: Callable[[str], object]) -> None:
        """Call ``started`` with the URL, and serve until Ctrl-C or SIGTERM."""
        config = uvicorn.Config(
            self.app,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        with contextlib.suppress(KeyboardInterrupt):
            started(self.url)
            _UntilEnded(config, self._ending).run(sockets=[self._socket])

    def close(self) -> None:
        """Stop listening, if the server was never run."""
        self._socket.close()

    def _make_app(self) -> Starlette:
        routes = [
            Route("/", self._page),
            Route("/session", self._session, methods=["POST"]),
            Route("/api/mesh", self._mesh),
            Route("/api/stream", self._stream),
            Route("/api/runs", self._runs),
            Route("/api/runs/{name}", self._run),
            Route("/api/runs/{name}/log", self._log),
            Route("/api/query", self._query, methods=["POST"]),
            Route("/api/act/{what}", self._act, methods=["POST"]),
            Route("/metrics", self._metrics),
            Mount(STATIC.rstrip("/"), StaticFiles(directory=FOLDER)),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._check)
        return app

    async def _check(self, request: Request, go_on: RequestResponseEndpoint) -> Response:
        path = request.url.path
        is_open = path in _OPEN or path.startswith(STATIC)
        if self.gate.is_foreign(request.headers):
            response: Response = PlainTextResponse("another host's name or page", 403)
        elif not is_open and not self.gate.is_known(
            request.cookies.get(COOKIE), request.headers.get("authorization", "")
        ):
            response = PlainTextResponse("open the URL that monarch dashboard has printed", 403)
        else:
            try:
                response = await go_on(request)
            except MonarchError as error:
                response = _json({"error": str(error)}, 400)
            except Exception as error:
                response = _json({"error": f"{type(error).__name__}: {error}"}, 500)
        response.headers.update(HEADERS)
        return response

    async def _page(self, request: Request) -> Response:
        return FileResponse(FOLDER / "index.html")

    async def _session(self, request: Request) -> Response:
        """Exchange the token of the URL for a cookie; answer a wrong token with status 403."""
        token = await _body_of(request, _MOST_TOKEN)
        cookie = self.gate.cookie_for(token.decode(errors="replace"))
        if cookie is None:
            return PlainTextResponse("that is another page's token", 403)
        response = Response(status_code=204)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return response

    async def _look(self) -> dict[str, Any]:
        """Return a snapshot that is at most a second old."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= 0.9 * _EVERY_SECONDS:
                self._snapshot = await asyncio.to_thread(self._make_snapshot)
                self._looked_at = time.monotonic()
        return self._snapshot

    def _make_snapshot(self) -> dict[str, Any]:
        source = self._source
        looks = source.look() if source.look is not None else []
        return {
            "title": source.title,
            "is_live": source.look is not None,
            "is_read_only": source.is_read_only,
            **self._view.update(looks, time.time()),
        }

    async def _mesh(self, request: Request) -> Response:
        snapshot = await self._look()
        return _json({**snapshot, "history": list(self._view.history)})

    async def _stream(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            while not self._ending.is_set() and not await request.is_disconnected():
                try:
                    snapshot = await self._unless_ending(self._look())
                except Exception as error:
                    snapshot = {"error": str(error)}
                if snapshot is None:
                    return
                yield f"data: {json_text(snapshot)}\n\n"
                await self._unless_ending(asyncio.sleep(_EVERY_SECONDS))

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _unless_ending(self, awaited: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of ``awaited``; ``None`` if the server ends before."""
        task, ending = asyncio.ensure_future(awaited), asyncio.ensure_future(self._ending.wait())
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _runs(self, request: Request) -> Response:
        views, runs = self._run_views, self._source.runs
        return _json(await asyncio.to_thread(lambda: views.summaries(runs())))

    def _find(self, request: Request) -> RunFolder | None:
        name = request.path_params["name"]
        return next((run for run in self._source.runs() if run.name == name), None)

    async def _run(self, request: Request) -> Response:
        run = await asyncio.to_thread(self._find, request)
        if run is None:
            return _json({"error": "there is no such run"}, 404)
        num_events = _number(request.query_params.get("events"))
        return _json(await asyncio.to_thread(self._run_views.data, run, num_events))

    async def _log(self, request: Request) -> Response:
        run = await asyncio.to_thread(self._find, request)
        if run is None:
            return _json({"error": "there is no such run"}, 404)
        try:
            ranks = _ranks(request.query_params.get("ranks", ""))
        except BadRanks as error:
            return _json({"error": str(error)}, 400)
        after = _number(request.query_params.get("after"))
        return _json(await asyncio.to_thread(self._run_views.log, run, ranks, after))

    async def _query(self, request: Request) -> Response:
        sql = (await _body_of(request, _MOST_SQL)).decode(errors="replace")

        def answer() -> dict[str, Any]:
            with self._source.tables(sql) as tables:
                table = tables.query(sql, most_rows=_MOST_ROWS, seconds=self.sql_seconds)
            rows = [{name: _shown(value) for name, value in row.items()} for row in table]
            return {"columns": table.columns, "rows": rows, "num_rows": len(table)}

        return _json(await asyncio.to_thread(answer))

    async def _act(self, request: Request) -> Response:
        action = request.path_params["what"]
        if self._source.is_read_only and action not in LOOKS:
            return _json({"error": "this page is read-only"}, 403)
        if "application/json" not in request.headers.get("content-type", ""):
            return _json({"error": "not a request of the page"}, 400)
        try:
            uids = [str(uid) for uid in json.loads(await _body_of(request, _MOST_SQL) or b"[]")]
        except (ValueError, TypeError):
            return _json({"error": "send a list of procs, or of a run"}, 400)
        return _json({"text": await asyncio.to_thread(self._source.act, action, uids)})

    async def _metrics(self, request: Request) -> Response:
        snapshot = await self._look()
        views, source = self._run_views, self._source
        runs = await asyncio.to_thread(lambda: views.summaries(source.runs()[-5:]))
        by_rank = request.query_params.get("by") == "rank"
        text = exposition(snapshot, runs, by_rank=by_rank)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def _body_of(request: Request, most: int) -> bytes:
    """Return the body of a request. Raises ``MonarchError`` if it is longer than ``most`` bytes."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise MonarchError(f"the request is longer than {most} bytes")
    return body


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 16 else -1


def _ranks(text: str) -> frozenset[int]:
    """Parse the ranks that a person names; an empty set means all.

    Raises ``BadRanks`` for text that names no ranks by number.
    """
    if text.strip() in ("", "all", "*"):
        return frozenset()
    ranks = parse_set(text)
    if isinstance(ranks, dict):
        raise BadRanks(f"{text!r}: name ranks by their numbers, as 0-3,7")
    if isinstance(ranks, range):
        ranks = ranks[:_MOST_RANK]
    return frozenset([ranks] if isinstance(ranks, int) else ranks)


def _shown(value: Any) -> Any:
    return value[:_MOST_TEXT] if isinstance(value, str) else value
