"""A mesh of hosts or procs that is usable at once, and comes up meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

from monarch.actor.future import Future
from monarch.actor.syncable import Syncable
from monarch.mesh.mesh_trait import ShapedMesh
from monarch.mesh.region import Region

Self = TypeVar("Self", bound="StartingMesh")


class StartingMesh(Syncable, ShapedMesh):
    """Subclasses say when they are up."""

    @property
    @abstractmethod
    def initialized(self) -> Future[bool]: ...

    @property
    def region(self) -> Region:
        """The names, sizes and ranks of this mesh."""
        return self._shape.region

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """Wait until it is up; the older spelling of a mesh that is usable at once."""
        yield from self.initialized.__await__()
        return self

    def get(self: Self, timeout: float | None = None) -> Self:
        """As awaiting it, where no loop runs. Raises ``TimeoutError`` after ``timeout`` seconds."""
        self.initialized.get(timeout)
        return self
