"""Endpoints that do not keep their actor from its next message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from monarch.actor.endpoint import EndpointProperty

__all__ = ["concurrent_endpoint"]


def concurrent_endpoint(
    method: Callable[..., Any] | None = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """``@endpoint`` for a coroutine that does not keep the actor from its next message."""

    def mark(function: Callable[..., Any]) -> EndpointProperty[..., Any]:
        if isinstance(function, EndpointProperty):
            raise ValueError("concurrent_endpoint does not wrap @endpoint: use it instead")
        if not inspect.iscoroutinefunction(function):
            raise ValueError("concurrent_endpoint can only wrap async endpoints")
        return EndpointProperty(
            function, propagate, explicit_response_port, instrument, concurrent=True
        )

    return mark if method is None else mark(method)
