"""Leaving the network by hand."""

from __future__ import annotations

from monarch.actor.future import Future, make_future
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.ends.late_thread import run_aside
from monarch.runtime.promise import Promise

__all__ = ["shutdown_context"]

_MAX_SECONDS = float(2**64)


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stop what this program spawned and leave the hosts. Also done at exit; idempotent.

    Actors have ``host_timeout`` seconds to clean up. Raises ``ValueError`` for one that is no
    number of seconds.
    """
    if host_timeout is not None and not 0 <= host_timeout < _MAX_SECONDS:
        raise ValueError("host_timeout must be finite, non-negative and less than 2**64 seconds")
    done: Promise[None] = Promise()
    agent = process.current() if process.is_bootstrapped() else None
    if not isinstance(agent, ClientAgent):
        done.set(None)
    else:

        def close() -> None:
            agent.close(host_timeout)
            process.uninstall()
            done.set(None)

        run_aside(close, name="monarch-shutdown")
    return make_future(done, lambda value: value)
