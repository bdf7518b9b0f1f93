"""The workspace that a host agent keeps for its procs, as the agent sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import HostPackages


class WorkspaceHost(Protocol):
    """The parts of a host agent that a workspace uses."""

    node: Node

    @property
    def procs(self) -> Mapping[Uid, object]: ...

    @property
    def client(self) -> ProcAddress | None: ...

    def workspace_changed(self) -> None:
        """Start the procs that wait for the workspace: it has a new state, or a push has ended.

        On the loop.
        """

    def publish(self, bulletin: Bulletin) -> None:
        """Publish a bulletin to the listeners of the host. On the loop."""


class HostedWorkspace(Protocol):
    """A folder of code, and the packages that came with it. Its methods may be called from any
    thread."""

    root: str
    """Its ``$WORKSPACE_DIR``; "" for none."""
    state_folder: str

    @property
    def generation(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def staged_bytes(self) -> int: ...

    @property
    def is_moving(self) -> bool:
        """Return whether files are being changed at this moment."""

    @property
    def replica(self) -> tuple[str, bool]:
        """Return the id of the workspace's folder, and whether this host writes it.

        Hosts that share the folder have the same id. Without a workspace it is "".
        """

    def import_folders(self) -> tuple[str, ...]:
        """Return the folders that procs put in front of ``sys.path``."""

    def packages(self) -> HostPackages:
        """Return the installed packages, for ``monarch status --packages``."""

    def serve(self, host: WorkspaceHost) -> None:
        """Answer the messages of pushes to this host, from now on."""


class NoWorkspace:
    """The workspace of a host that has none: an object with the methods of a workspace, which does
    nothing.

    ``generation`` returns the generation at which the host's procs begin; by default 0.
    """

    root = ""
    state_folder = ""
    digest = ""
    staged_bytes = 0
    is_moving = False
    replica = ("", False)

    def __init__(self, generation: Callable[[], int] = lambda: 0) -> None:
        self._generation = generation

    @property
    def generation(self) -> int:
        return self._generation()

    def import_folders(self) -> tuple[str, ...]:
        return ()

    def packages(self) -> HostPackages:
        return HostPackages()

    def serve(self, host: WorkspaceHost) -> None: ...
