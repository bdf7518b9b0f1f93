"""Spans and metrics through OpenTelemetry where a provider takes them; otherwise nothing.

We make no provider: a program that wants spans or metrics sets one up, as for any library, at any
time. Until then a call costs nothing more, though OpenTelemetry be installed, as it is wherever
some other package needs it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

from monarch.runtime.context import running

F = TypeVar("F", bound=Callable[..., Any])

_PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"


@functools.cache
def is_installed() -> bool:
    """Whether there is an OpenTelemetry to report to."""
    return importlib.util.find_spec("opentelemetry") is not None


def is_tracing() -> bool:
    """Whether spans are taken now. To be asked at each call, so it imports nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        # The program cannot have set one, but the environment may name one to be loaded.
        return _PROVIDER_VARIABLE in os.environ and is_installed()
    provider = trace.get_tracer_provider()
    return not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def span(name: str, correlation_id: int | None = None) -> AbstractContextManager[Any]:
    """A span for a ``with`` block, with the running actor as attributes."""
    if not is_tracing():
        return contextlib.nullcontext()
    from opentelemetry import trace

    attributes: dict[str, Any] = {}
    now = running.get()
    if now is not None:
        attributes = {"monarch.actor": now.record.name, "monarch.rank": now.record.rank}
    if correlation_id is not None:
        attributes["monarch.correlation_id"] = correlation_id
    made: AbstractContextManager[Any] = trace.get_tracer("monarch").start_as_current_span(
        name, attributes=attributes
    )
    return made


@overload
def traced(fn: F, *, name: str | None = None) -> F: ...
@overload
def traced(fn: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
def traced(fn: Any = None, *, name: str | None = None) -> Any:
    """Put each call of a function, sync or async, into a span of its name, or of ``name``."""
    if fn is None:
        return lambda function: traced(function, name=name)
    label = name or fn.__qualname__
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with span(label):
                return await fn(*args, **kwargs)

        return run_async

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        with span(label):
            return fn(*args, **kwargs)

    return run


def get_meter() -> Any:
    """The OpenTelemetry meter of the runtime, or one with the same methods that does nothing.

    ``create_counter``, ``create_up_down_counter``, ``create_histogram`` and ``create_gauge`` give
    instruments with ``add``, ``record`` and ``set``.
    """
    if not is_installed():
        return _NoMeter()
    from opentelemetry import metrics

    return metrics.get_meter("monarch")


class _NoInstrument:
    """Takes what any instrument takes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...

    def set(self, amount: float, attributes: Any = None, context: Any = None) -> None: ...


class _NoMeter:
    """Stand-ins where OpenTelemetry is not installed: the same calls, and no effect."""

    name = "monarch"

    def create_counter(self, name: str, unit: str = "", description: str = "") -> _NoInstrument:
        return _NoInstrument(name)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> _NoInstrument:
        return _NoInstrument(name)

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> _NoInstrument:
        return _NoInstrument(name)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _NoInstrument:
        return _NoInstrument(name)

    def _create_observable(
        self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
    ) -> _NoInstrument:
        return _NoInstrument(name)

    create_observable_counter = _create_observable
    create_observable_up_down_counter = _create_observable
    create_observable_gauge = _create_observable
