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


class TracerProvider: ...


class ProxyTracerProvider(TracerProvider): ...


class NoOpTracerProvider(TracerProvider): ...


def get_tracer_provider() -> TracerProvider:
    return TracerProvider()


def get_tracer(name: str) -> Tracer:
    return Tracer()
