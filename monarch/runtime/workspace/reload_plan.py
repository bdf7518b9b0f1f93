"""What an owner tells its processes about a generation that is ready."""

from __future__ import annotations

import msgspec

from monarch.wire.address import Uid

__all__ = ["FileChange", "RefusedFile", "ReloadOutcome", "ReloadPlan"]


class FileChange(msgspec.Struct, array_like=True, frozen=True):
    """``path`` will hold what ``source`` holds now; an empty ``source`` means deleted."""

    path: str
    source: str


class ReloadPlan(msgspec.Struct):
    """The files that a generation changes, by the host that they lie on.

    ``local`` are the author's own files, for processes that run them where they are, on the
    author's machine. ``paths`` are import folders by host. ``covers`` are all hosts that have
    this state then, ``behind`` those that are left with another. ``author`` is who pushes, for
    people, ``folders`` where the workspace's folders land.
    """

    generation: int
    digest: str
    mode: str
    hosts: dict[Uid, list[FileChange]] = {}
    paths: dict[Uid, list[str]] = {}
    local: list[FileChange] = []
    local_paths: list[str] = []
    author_machine: str = ""
    author: str = ""
    folders: list[str] = []
    covers: list[Uid] = []
    behind: list[Uid] = []


class RefusedFile(msgspec.Struct):
    """Why new code was refused, and where. ``rank`` names the process that said no."""

    rank: str
    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    text: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        lines = [place] if place else []
        if self.text:
            stripped = self.text.lstrip()
            lines.append(f"    {stripped}")
            if self.column:
                caret = max(self.column - 1 - (len(self.text) - len(stripped)), 0)
                lines.append("    " + " " * caret + "^")
        return "\n".join([*lines, self.message])


class ReloadOutcome(msgspec.Struct):
    """What became of a step in a process and in those it owns. ``busy``: somebody else pushes."""

    modules: list[str] = []
    functions: list[str] = []
    classes: list[str] = []
    reran: list[str] = []
    respawn: list[str] = []
    actors: dict[str, int] = {}
    num_procs: int = 0
    seconds: float = 0.0
    refused: list[RefusedFile] = []
    busy: str = ""

    def add(self, other: ReloadOutcome) -> None:
        """Take in what another process says."""
        for name in ("modules", "functions", "classes", "reran", "respawn"):
            known = getattr(self, name)
            known.extend(item for item in getattr(other, name) if item not in known)
        for name, count in other.actors.items():
            self.actors[name] = self.actors.get(name, 0) + count
        self.num_procs += other.num_procs
        self.seconds = max(self.seconds, other.seconds)
        self.refused.extend(other.refused)
        self.busy = self.busy or other.busy
