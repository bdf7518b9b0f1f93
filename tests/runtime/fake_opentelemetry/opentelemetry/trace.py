import contextlib
from collections.abc import Iterator

from opentelemetry import report


class Tracer:
    @contextlib.contextmanager
    def start_as_current_span(
        self, name: str, attributes: dict[str, object] | None = None
    ) -> Iterator[None]:
        report(start=name, attributes=attributes)
        try:
            yield
        finally:
            report(end=name)


class SpanContext:
    is_valid = False


class Span:
    def get_span_context(self) -> SpanContext:
        return SpanContext()


def get_current_span() -> Span:
    return Span()


class TracerProvider: ...


class ProxyTracerProvider(TracerProvider): ...


class NoOpTracerProvider(TracerProvider): ...


def get_tracer_provider() -> TracerProvider:
    return TracerProvider()


def get_tracer(name: str) -> Tracer:
    return Tracer()
