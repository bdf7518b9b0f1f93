"""Upstream's source loader: the text of a file as the client has it."""

from __future__ import annotations

import linecache
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.actor.controllers import get_or_spawn_controller
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent


class SourceLoaderController(Actor):
    """Lives in the client, where debuggers of held calls ask for files that their host lacks."""

    def __init__(self) -> None:
        agent = process.current()
        if isinstance(agent, ClientAgent):
            own: Any = self
            agent.holds.source_of = own.get_source

    @endpoint
    def get_source(self, filename: str) -> str:
        """The lines that the client knows of a file; nothing for one it does not know."""
        return "".join(linecache.getlines(filename))


def source_loader_controller() -> SourceLoaderController:
    """The program's one; made when there is none yet."""
    made: SourceLoaderController = get_or_spawn_controller(
        "source_loader", SourceLoaderController
    ).get()
    return made


def load_remote_source(filename: str) -> str:
    """Ask the client for the text of a file that is not here."""
    source: str = source_loader_controller().get_source.call_one(filename).get()
    return source
