"""A mesh of hosts or procs that is usable at once, while it still starts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from monarch.actor.future import Future
from monarch.actor.logs import LoggedMesh
from monarch.actor.syncable import Syncable
from monarch.mesh.mesh_trait import ShapedMesh
from monarch.mesh.region import Region

Self = TypeVar("Self", bound="StartingMesh")


class StartingMesh(Syncable, LoggedMesh, ShapedMesh):
    """A mesh that is still starting. Subclasses define ``initialized``."""

    #: How programs make such a mesh, for an error text.
    _MADE_BY = ""
    #: Hints for attributes that other objects have, by name.
    _ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        if not args and not kwargs:
            raise TypeError(f"a {cls.__name__} is made by {cls._MADE_BY}, not by hand")
        return object.__new__(cls)

    def __getattr__(self, name: str) -> NoReturn:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        hint = type(self)._ELSEWHERE.get(name)
        raise AttributeError(f"{text}: {hint}" if hint else text)

    @property
    @abstractmethod
    def initialized(self) -> Future[bool]: ...

    @property
    def region(self) -> Region:
        """Return the names, sizes and ranks of this mesh."""
        return self._shape.region

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """Wait until the mesh is up, and return it.

        Nobody needs it: a mesh can be used at once. Older programs await it.
        """
        yield from self.initialized.__await__()
        return self

    def get(self: Self, timeout: float | None = None) -> Self:
        """Wait until the mesh is ready, and return it. Call it where no asyncio loop runs.

        Raises ``TimeoutError`` after ``timeout`` seconds.
        """
        self.initialized.get(timeout)
        return self
