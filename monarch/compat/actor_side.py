"""Names that code inside actors imports from Monarch's private modules."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from monarch.actor import Context, context, get_meter
from monarch.runtime import process
from monarch.runtime.context import running

_depth = threading.local()


class _CurrentContext:
    """A context variable that returns the context of the running actor or of the client.

    Programs ask it whether they have a context yet.
    """

    def get(self, default: Context | None = None) -> Context | None:
        """Return the context or ``default``; unlike ``context()``, do not make the program a
        client."""
        is_there = running.get() is not None or process.is_bootstrapped()
        return context() if is_there else default


_context = _CurrentContext()


class _ClientContext:
    """The context of the program itself."""

    def get(self) -> Context:
        return context()

    @property
    def _val(self) -> Context | None:
        return self.try_get()

    def try_get(self) -> Context | None:
        """Return the client's context; ``None`` if the program is no client yet, and in procs."""
        is_client = process.is_bootstrapped() and process.current().is_root
        return context() if is_client else None


_client_context = _ClientContext()


@contextlib.contextmanager
def fake_sync_state() -> Iterator[None]:
    """Hide the running event loop within this block, so that code in it may block."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    _depth.value = getattr(_depth, "value", 0) + 1
    try:
        yield
    finally:
        _depth.value -= 1
        asyncio._set_running_loop(loop)


def in_fake_sync_state() -> bool:
    """Whether ``fake_sync_state`` hides a loop on this thread."""
    return bool(getattr(_depth, "value", 0))


def is_ipython() -> bool:
    """Whether this program runs in IPython or a notebook."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


METER = get_meter()


def get_monarch_tracer() -> Any:
    """Return the OpenTelemetry tracer of the runtime. Raises ``ImportError`` without
    OpenTelemetry."""
    from opentelemetry import trace

    return trace.get_tracer("monarch")


class TracingForwarder(logging.Handler):
    """Adds log records to the current span, if OpenTelemetry is installed."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            return
        text = record.getMessage()
        trace.get_current_span().add_event(text, {"level": record.levelname, "logger": record.name})
