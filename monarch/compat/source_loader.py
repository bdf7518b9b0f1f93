"""Upstream's source loader: gets a file's source text from the client."""

from __future__ import annotations

import linecache
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.actor.controllers import get_or_spawn_controller
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent


class SourceLoaderController(Actor):
    """An actor in the client, which debuggers of held calls ask for files that their host lacks."""

    def __init__(self) -> None:
        agent = process.current()
        if isinstance(agent, ClientAgent):
            bound: Any = self.get_source
            agent.holds.source_of = bound

    @endpoint
    def get_source(self, filename: str) -> str:
        """Return a file's text as the client has it; "" for an unknown file."""
        return "".join(linecache.getlines(filename))


def source_loader_controller() -> SourceLoaderController:
    """Return the program's source loader; make it at the first call."""
    controller = get_or_spawn_controller("source_loader", SourceLoaderController)
    return controller.get()  # type: ignore[no-any-return]


def load_remote_source(filename: str) -> str:
    """Return the text of a file that this host lacks, as the client has it; "" if it has none."""
    return source_loader_controller().get_source.call_one(filename).get()  # type: ignore[no-any-return]
