"""Spans and metrics: to OpenTelemetry where there is one, else to nobody."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, get_meter, span, this_host, traced
from monarch.runtime import telemetry
from tests.support import Program

FAKE = Path(__file__).parent / "fake_opentelemetry"
SECONDS = 60.0


@pytest.fixture
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Procs are forked from a template that looks for itself; what matters there is the same.
    monkeypatch.setattr(telemetry, "is_installed", lambda: False)


without = pytest.mark.usefixtures("_nothing_installed")

PROGRAM = """
    import asyncio
    from monarch.actor import Actor, concurrent_endpoint, endpoint
    from monarch.actor import get_meter, span, this_host, traced

    class Sync(Actor):
        @endpoint
        def work(self, value):
            with span("inner", 7):
                return value

        @endpoint(instrument=False)
        def quiet(self):
            get_meter().create_counter("done").add(2, {"a": "b"})

        @endpoint
        def fail(self):
            raise ValueError("no")

    class Async(Actor):
        @endpoint
        async def work(self, value):
            return value

        @concurrent_endpoint
        async def beside(self):
            await asyncio.sleep(0)

    @traced
    def plain():
        pass

    @traced(name="named")
    async def coroutine():
        pass

    procs = this_host().spawn_procs()
    sync, other = procs.spawn("sync", Sync), procs.spawn("async", Async)
    assert sync.work.call_one(3).get(timeout=20) == 3
    sync.initialized.get(timeout=20)
    sync.quiet.call_one().get(timeout=20)
    assert sync.fail.call_one().exception(timeout=20) is not None
    assert other.work.call_one(4).get(timeout=20) == 4
    other.beside.call_one().get(timeout=20)
    try:
        sync.work.call_one()
    except TypeError:
        print("checked")
    plain()
    asyncio.run(coroutine())
    print("done")
"""


def test_calls_are_spans_where_somebody_listens(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    log = tmp_path / "telemetry"
    running = program(
        PROGRAM, PYTHONPATH=str(FAKE), FAKE_TELEMETRY=str(log), OTEL_PYTHON_TRACER_PROVIDER="fake"
    )
    assert running.wait() == 0, running.story()
    assert running.lines[-2:] == ["checked", "done"]
    reports = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [step for one in reports for key, step in one.items() if key in ("start", "end")]
    assert steps == [
        "sync.work", "inner", "inner", "sync.work", "sync.fail", "sync.fail",
        "async.work", "async.work", "async.beside", "async.beside",
        "plain", "plain", "named", "named",
    ]  # fmt: skip
    by_name = {one["start"]: one["attributes"] for one in reports if "start" in one}
    assert by_name["sync.work"] == {"monarch.actor": "sync", "monarch.rank": 0}
    assert by_name["inner"]["monarch.correlation_id"] == 7
    assert by_name["plain"] == {}
    assert [one["amount"] for one in reports if one.get("counter") == "done"] == [2]


class Watched(Actor):
    """Its provider comes when it has been called already."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @endpoint
    def depth(self) -> int:
        return len(inspect.stack())

    @endpoint(instrument=False)
    def watch(self) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        provider, seen = TracerProvider(), self.seen

        class Noting(SpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                seen.append(span.name)

        provider.add_span_processor(Noting())
        trace.set_tracer_provider(provider)

    @endpoint(instrument=False)
    def names(self) -> list[str]:
        return self.seen


@pytest.mark.long
def test_a_provider_counts_from_when_it_is_set_and_before_nothing_is_wrapped() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    watched = this_host().spawn_procs().spawn("watched", Watched)
    before = [watched.depth.call_one().get(timeout=SECONDS) for _ in range(2)]
    watched.watch.call_one().get(timeout=SECONDS)
    after = [watched.depth.call_one().get(timeout=SECONDS) for _ in range(2)]
    assert watched.names.call_one().get(timeout=SECONDS) == ["watched.depth"] * 2
    assert before[0] == before[1] < after[0] == after[1]


CONTEXT = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBased, ALWAYS_OFF, ALWAYS_ON
    from monarch.actor import Actor, endpoint, this_host

    def provide(sampler):
        exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        return provider, exporter

    class Inner(Actor):
        def __init__(self):
            self.exporter = provide(ParentBased(ALWAYS_ON))[1]

        @endpoint
        def work(self):
            return 1

        @endpoint(instrument=False)
        def seen(self):
            return [
                (one.name, one.context.trace_id, one.parent and one.parent.span_id)
                for one in self.exporter.get_finished_spans()
            ]

    class Outer(Actor):
        def __init__(self, inner):
            self.inner, self.exporter = inner, provide(ParentBased(ALWAYS_ON))[1]

        @endpoint
        def work(self):
            return self.inner.work.call_one().get(timeout=20)

        @endpoint(instrument=False)
        def seen(self):
            return [
                (one.name, one.context.trace_id, one.context.span_id, one.parent.span_id)
                for one in self.exporter.get_finished_spans()
            ]

    host = this_host()
    inner = host.spawn_procs().spawn("inner", Inner)
    outer = host.spawn_procs().spawn("outer", Outer, inner)
    inner.initialized.get(timeout=20)
    provider, _ = provide(ALWAYS_ON)
    with provider.get_tracer("mine").start_as_current_span("step") as mine:
        outer.work.call_one().get(timeout=20)
        mine = mine.get_span_context()
    ((name, of, span, parent),) = outer.seen.call_one().get(timeout=20)
    assert (name, of, parent) == ("outer.work", mine.trace_id, mine.span_id)
    ((name, of, parent),) = inner.seen.call_one().get(timeout=20)
    assert (name, of, parent) == ("inner.work", mine.trace_id, span)

    # Of a span that is not sampled nothing is passed on: the endpoint's begins a trace of its own.
    unsampled = TracerProvider(sampler=ALWAYS_OFF).get_tracer("mine")
    with unsampled.start_as_current_span("step"):
        inner.work.call_one().get(timeout=20)
    (_, (name, of, parent)) = inner.seen.call_one().get(timeout=20)
    assert name == "inner.work" and of != mine.trace_id and parent is None
    print("passed on")
"""


@pytest.mark.long
def test_an_endpoints_span_is_the_child_of_its_callers_where_that_is_sampled(
    program: Callable[..., Program],
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    running = program(CONTEXT)
    assert running.wait() == 0, running.story()
    assert running.lines[-1] == "passed on"


class Traced(Actor):
    @endpoint
    @traced
    def work(self, value: int) -> int:
        with span("inner"):
            return value


@without
def test_without_opentelemetry_all_of_it_works_and_nothing_is_wrapped() -> None:
    @traced(name="x")
    async def double(value: int) -> int:
        with span("y", correlation_id=3):
            return value * 2

    assert asyncio.run(double(4)) == 8
    assert double.__name__ == "double"
    mesh = this_host().spawn_procs().spawn("traced", Traced)
    assert mesh.work.call_one(3).get(timeout=SECONDS) == 3
    with pytest.raises(TypeError):
        mesh.work.call_one()
    with pytest.raises(KeyError), span("z"):
        raise KeyError


@without
@pytest.mark.parametrize(
    ("create", "use"),
    [
        ("create_counter", "add"),
        ("create_up_down_counter", "add"),
        ("create_histogram", "record"),
        ("create_gauge", "set"),
    ],
)
def test_without_opentelemetry_instruments_take_everything(create: str, use: str) -> None:
    instrument: Any = getattr(get_meter(), create)("steps", unit="1", description="how many")
    getattr(instrument, use)(1)
    getattr(instrument, use)(1.5, {"rank": "3"})


@without
def test_without_opentelemetry_observable_instruments_are_never_asked() -> None:
    def never(options: object) -> list[object]:
        raise AssertionError("asked")

    meter = get_meter()
    meter.create_observable_counter("a", callbacks=[never])
    meter.create_observable_up_down_counter("b", [never], "1", "text")
    meter.create_observable_gauge("c")
