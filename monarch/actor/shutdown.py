"""Leaving the network by hand."""

from __future__ import annotations

import threading

from monarch.actor.future import Future, make_future
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.promise import Promise

__all__ = ["shutdown_context"]


def shutdown_context() -> Future[None]:
    """Stop what this program spawned and leave the hosts. Also done at exit; idempotent."""
    done: Promise[None] = Promise()
    agent = process.current() if process.is_bootstrapped() else None
    if not isinstance(agent, ClientAgent):
        done.set(None)
    else:

        def close() -> None:
            agent.close()
            process.uninstall()
            done.set(None)

        threading.Thread(target=close, name="monarch-shutdown").start()
    return make_future(done, lambda value: value)
