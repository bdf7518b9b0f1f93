"""The endpoints that a class offers, and whether it may be spawned at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from monarch.runtime import telemetry
from monarch.wire.message import PING, Call


class EndpointSpec(msgspec.Struct):
    """A method that may be called from elsewhere.

    ``is_concurrent``: the next message need not wait for this one to finish. ``instrument``: each
    call is a span, if OpenTelemetry is installed. ``propagate`` tells which tensors the endpoint
    returns, for callers that make distributed tensors of them.
    """

    method: Callable[..., Any]
    explicit_response_port: bool = False
    is_concurrent: bool = False
    instrument: bool = True
    propagate: Any = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.method)


def endpoint_specs(cls: type) -> dict[str, EndpointSpec]:
    """Return the endpoints of a class by name. They are looked up at each call, so that reloads
    count."""
    specs: dict[str, EndpointSpec] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            spec = getattr(value, "endpoint_spec", None)
            if isinstance(spec, EndpointSpec):
                specs[name] = spec
            else:
                specs.pop(name, None)
    return specs


def is_async_actor(cls: type) -> bool:
    """Return whether the actor's endpoints run on an asyncio loop instead of a thread of its
    own."""
    return any(spec.is_async for spec in endpoint_specs(cls).values())


def check_actor_class(cls: type, reserved: Callable[[str], bool]) -> None:
    """Raise ``ValueError`` for a class that cannot be an actor.

    ``reserved`` returns whether an actor mesh needs a name for itself.
    """
    specs = endpoint_specs(cls)
    for name in specs:
        if reserved(name):
            raise ValueError(
                f"ActorMesh has an attribute that collides with an endpoint name: {name!r} of "
                f"{cls.__qualname__}. Rename the endpoint."
            )
    kinds = {spec.is_async for spec in specs.values()}
    if len(kinds) > 1:
        sync = [name for name, spec in specs.items() if not spec.is_async]
        raise ValueError(
            f"{cls.__qualname__} mixes both async and sync endpoints. Make all of them (and "
            f"`__cleanup__`) either `def` or `async def`; the sync ones are: {', '.join(sync)}"
        )
    cleanup = getattr(cls, "__cleanup__", None)
    if cleanup is not None and specs and inspect.iscoroutinefunction(cleanup) not in kinds:
        kind, odd = ("async", "a synchronous") if kinds == {True} else ("synchronous", "an async")
        raise ValueError(
            f"{cls.__qualname__} mixes both async and sync endpoints and hooks: it has {kind} "
            f"endpoints and {odd} __cleanup__. Make both `def`, or both `async def`"
        )


_PING_SPEC = EndpointSpec(lambda instance: None, instrument=False)

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]

FindEndpoint = Callable[[Call], EndpointSpec]


def finder(name: str, cls_now: Callable[[], type | None]) -> FindEndpoint:
    """Return a function that finds the endpoint for a call of the actor ``name``.

    It looks in the present version of the class. If OpenTelemetry is installed, each call is also
    traced.
    """

    def find(call: Call) -> EndpointSpec:
        cls = cls_now()
        assert cls is not None
        if call.method == PING:
            return _PING_SPEC
        # Looked up at each call, so that a reload shows at once.
        for base in cls.__mro__:
            if call.method in vars(base):
                method = vars(base)[call.method]
                spec = getattr(method, "endpoint_spec", None)
                if isinstance(spec, EndpointSpec):
                    return spec
                return EndpointSpec(method, call.explicit_response_port)
        raise AttributeError(
            f"{cls.__qualname__} has no endpoint {call.method!r}: was it removed by a reload?"
        )

    return _traced(name, find) if telemetry.is_installed() else find


def _traced(name: str, plain: FindEndpoint) -> FindEndpoint:
    traces: dict[str, tuple[EndpointSpec, EndpointSpec]] = {}

    def title(call: Call) -> str:
        return f"{name}.{call.method}"

    def find(call: Call) -> EndpointSpec:
        spec = plain(call)
        if not spec.instrument or not telemetry.is_tracing():
            return spec
        if call.trace:
            # Its parent is the caller's span, which differs at each call.
            return replace(spec, method=telemetry.in_span(spec.method, title(call), call.trace))
        plain_spec, traced = traces.get(call.method, (None, spec))
        if plain_spec is not spec:  # The first call, or a reload has replaced the endpoint.
            traced = replace(spec, method=telemetry.in_span(spec.method, title(call)))
            traces[call.method] = (spec, traced)
        return traced

    return find


def surrounded(plain: FindEndpoint, wrap: Wrap) -> FindEndpoint:
    """Return a finder like ``plain`` that passes each endpoint through ``wrap``."""

    def find(call: Call) -> EndpointSpec:
        if call.method == PING:
            return plain(call)
        try:
            spec = plain(call)
        except AttributeError as error:
            missing = error

            def fail(*args: Any, **kwargs: Any) -> None:
                raise missing

            spec = EndpointSpec(fail)  # So that ``wrap`` sees the error too.
        return replace(spec, method=wrap(call.method, spec.method))

    return find
