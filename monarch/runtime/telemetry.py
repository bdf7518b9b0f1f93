"""Spans and metrics through OpenTelemetry, if the program has set a provider; otherwise nothing.

We set no provider: a program that wants spans or metrics sets one, as for any library, at any time.
Until then a call costs nothing more, even if OpenTelemetry is installed because another package
needs it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

from monarch.core.event_ring import SPAN, EventRing
from monarch.runtime.context import running
from monarch.runtime.current_node import current_node

F = TypeVar("F", bound=Callable[..., Any])

_PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"


@functools.cache
def is_installed() -> bool:
    """Return whether OpenTelemetry is installed."""
    return importlib.util.find_spec("opentelemetry") is not None


@functools.cache
def _is_named() -> bool:
    """Return whether the environment names an OpenTelemetry provider, which is loaded on first
    use."""
    return _PROVIDER_VARIABLE in os.environ and is_installed()


def is_tracing() -> bool:
    """Return whether a provider takes spans now. It runs at each call, so it imports nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _is_named()  # The program cannot have set one.
    if getattr(trace, "_TRACER_PROVIDER", trace) is None and not _is_named():
        return False  # None was set. To ask for it in public costs as much as a short endpoint.
    provider = trace.get_tracer_provider()
    return not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def current_trace() -> str:
    """Return the present span as W3C's ``traceparent``; empty if none is sampled."""
    if not is_tracing():
        return ""
    from opentelemetry import trace

    span = trace.get_current_span().get_span_context()
    if not (span.is_valid and span.trace_flags.sampled):
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-01"


def _context_of(parent: str) -> Any:
    """Return a context with the span that ``parent`` (W3C ``traceparent``) names, or ``None`` if
    the text is malformed."""
    from opentelemetry import trace

    try:
        _, trace_id, span_id, flags = parent.split("-")
        remote = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16))
        )
    except ValueError:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(remote))


class _NotedSpan:
    """A ``with`` block that is recorded among the last events of this process."""

    def __init__(self, name: str, ring: EventRing) -> None:
        self._name = name
        self._ring = ring

    def __enter__(self) -> None:
        self._since = self._ring.clock()

    def __exit__(self, *error: object) -> None:
        current = running.get()
        who = ("", 0) if current is None else (current.record.uid, current.record.rank)
        end = self._ring.clock()
        self._ring.add((SPAN, end, *who, self._name, end - self._since))


def _ring() -> EventRing | None:
    try:
        return current_node().ring
    except RuntimeError:
        return None  # It has not joined the network: no process could ask it.


def span(name: str, correlation_id: int | None = None) -> AbstractContextManager[Any]:
    """Return a ``with`` block that is a span.

    It is recorded among this process's last events, for ``monarch query`` and ``monarch trace``. If
    a provider is set, it is also a span in OpenTelemetry, with the running actor as attributes.
    """
    ring = _ring()
    if not is_tracing():
        return contextlib.nullcontext() if ring is None else _NotedSpan(name, ring)
    otel_span = _otel_span(name, correlation_id)
    if ring is None:
        return otel_span
    both = contextlib.ExitStack()
    both.enter_context(_NotedSpan(name, ring))
    both.enter_context(otel_span)
    return both


def _otel_span(
    name: str, correlation_id: int | None = None, parent: str = ""
) -> AbstractContextManager[Any]:
    from opentelemetry import trace

    attributes: dict[str, Any] = {}
    current = running.get()
    if current is not None:
        attributes = {"monarch.actor": current.record.name, "monarch.rank": current.record.rank}
    if correlation_id is not None:
        attributes["monarch.correlation_id"] = correlation_id
    options = {"context": _context_of(parent)} if parent else {}
    started: AbstractContextManager[Any] = trace.get_tracer("monarch").start_as_current_span(
        name, attributes=attributes, **options
    )
    return started


@overload
def traced(fn: F, *, name: str | None = None) -> F: ...
@overload
def traced(fn: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
def traced(fn: Any = None, *, name: str | None = None) -> Any:
    """Put each call of a function, sync or async, into a span of its name, or of ``name``."""
    if fn is None:
        return lambda function: traced(function, name=name)
    label = name or fn.__qualname__
    return _in_spans(fn, lambda: span(label))


def in_span(fn: F, name: str, parent: str = "") -> F:
    """Wrap an endpoint so that each call is a span for OpenTelemetry's provider.

    ``parent`` is the span of the caller: the text that ``current_trace`` returned in its process,
    or "".
    """

    def begin() -> AbstractContextManager[Any]:
        return _otel_span(name, parent=parent) if is_tracing() else contextlib.nullcontext()

    wrapped: F = _in_spans(fn, begin)
    return wrapped


def _in_spans(fn: Any, begin: Callable[[], AbstractContextManager[Any]]) -> Any:
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with begin():
                return await fn(*args, **kwargs)

        return run_async

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        with begin():
            return fn(*args, **kwargs)

    return run


def get_meter() -> Any:
    """Return the OpenTelemetry meter of the runtime, or one with the same methods that does
    nothing.

    ``create_counter``, ``create_up_down_counter``, ``create_histogram`` and ``create_gauge`` give
    instruments with ``add``, ``record`` and ``set``.
    """
    if not is_installed():
        return _NoMeter()
    from opentelemetry import metrics

    return metrics.get_meter("monarch")


class _NoInstrument:
    """An instrument that ignores every measurement."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...

    def set(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...


class _NoMeter:
    """A meter for use where OpenTelemetry is not installed: the same methods, and no effect."""

    name = "monarch"

    def _create(self, name: str, *arguments: Any, **options: Any) -> _NoInstrument:
        return _NoInstrument(name)

    create_counter = create_up_down_counter = create_histogram = create_gauge = _create
    create_observable_counter = create_observable_up_down_counter = _create
    create_observable_gauge = _create
