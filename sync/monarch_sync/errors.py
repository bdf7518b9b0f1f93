"""Every error of `monarch_sync`, in one tree.

    SyncError
    ├── WorkspaceMissing      a folder of the workspace is not there
    ├── WorkspaceEmptied      nothing of a folder is synced, and hosts have files of it
    ├── BadManifest           an entry that no manifest may hold
    ├── BadMessage            bytes that are not a message of this protocol
    │   └── VersionMismatch   a message of another protocol version
    ├── MovedUnderfoot        a file changed between the scan and the sending
    ├── PushRefused           a host refused a push
    ├── GenerationUnknown     no host remembers a generation
    ├── ContentGone           a content that no host has any more
    ├── ReplicaBusy           another process has this replica
    ├── WatchEnded            the watched folder is gone
    └── SyncFailed            a report with errors, raised on request

The text of each is made from its fields, which are also its arguments and survive pickling.
"""

from __future__ import annotations

from dataclasses import dataclass

from monarch_sync.words import counted, plain, printable


class SyncError(Exception):
    """Base of every error of this package."""

    def __post_init__(self) -> None:
        # Pickling needs all fields as arguments, also those that have their defaults.
        self.args = tuple(vars(self).values())


@dataclass(eq=False, repr=False)
class WorkspaceMissing(SyncError):
    """A workspace folder does not exist, is not a directory, or cannot be listed."""

    folder: str
    reason: str = "does not exist"

    def __str__(self) -> str:
        return (
            f"workspace folder {self.folder!r} {self.reason}. "
            "Fix that, or take it out of Workspace(dirs=...)."
        )


@dataclass(eq=False, repr=False)
class WorkspaceEmptied(SyncError):
    """A workspace folder has nothing to sync, while hosts have files of it. No host was changed; a
    push with ``allow_empty`` deletes these files."""

    folder: str
    num_files: int

    def __str__(self) -> str:
        files = counted(self.num_files, "file")
        return (
            f"nothing in workspace folder {self.folder!r} is there to be synced, and hosts have "
            f"{files} of it, which a push would delete. Is its disk not mounted, or does a pattern "
            "leave out all of it? If the hosts' files are to go: `monarch sync --allow-empty`, in "
            "a program sync_workspace(..., allow_empty=True)."
        )


@dataclass(eq=False, repr=False)
class BadManifest(SyncError):
    """A manifest has an entry that could write outside of its folder, or that contradicts
    another."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"manifest entry {self.path!r} {self.reason}. The manifest was refused as a whole."


@dataclass(eq=False, repr=False)
class BadMessage(SyncError):
    """Bytes that do not decode to a message of the push protocol."""

    reason: str

    def __str__(self) -> str:
        return f"not a sync message: {self.reason}. Is the peer a monarch_sync of this version?"


class VersionMismatch(BadMessage):
    """The peer speaks another version of the push protocol."""

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(f"protocol {theirs}, not {ours}")
        self.args = (ours, theirs)
        self.ours = ours
        self.theirs = theirs

    def __str__(self) -> str:
        sides = ("the peer", "this side")
        older, newer = sides if self.theirs < self.ours else sides[::-1]
        return (
            f"{older} speaks sync protocol {min(self.ours, self.theirs)}, "
            f"{newer} speaks {max(self.ours, self.theirs)}. "
            f"Upgrade monarch-loop on {older} to the version that {newer} runs, and start it again."
        )


@dataclass(eq=False, repr=False)
class MovedUnderfoot(SyncError):
    """A file's content is no longer the one that the scan found. Scan again, then push again."""

    path: str

    def __str__(self) -> str:
        return f"{self.path!r} changed between the scan and the push. Scan again and push again."


@dataclass(eq=False, repr=False)
class PushRefused(SyncError):
    """A host refused a push; nothing visible changed there."""

    code: str
    reason: str
    path: str = ""

    def __str__(self) -> str:
        place = f" at {self.path!r}" if self.path else ""
        return (
            f"the host refused the push{place}: {printable(self.reason)} ({printable(self.code)})"
        )


@dataclass(eq=False, repr=False)
class GenerationUnknown(SyncError):
    """No host remembers this generation."""

    generation: int
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"no host can tell what was in generation {self.generation}"
            + (f" ({printable(self.reason)})" if self.reason else "")
            + ". `monarch sync history` lists those that are remembered."
        )


@dataclass(eq=False, repr=False)
class ContentGone(SyncError):
    """A content of an earlier generation was trimmed from the store of every host."""

    path: str
    num_hosts: int
    num_missing: int = 1
    generation: int = 0

    def __str__(self) -> str:
        where = "the store of the host" if self.num_hosts == 1 else f"all {self.num_hosts} stores"
        state = f" of generation {self.generation}" if self.generation else ""
        rest = self.num_missing - 1
        more = f" and {counted(rest, 'other content')}" if rest else ""
        return (
            f"the content of {self.path!r}{more}{state} was trimmed from {where}, which keep the "
            "latest only. Nothing was changed. Check that state out here, and `monarch sync` it."
        )


@dataclass(eq=False, repr=False)
class ReplicaBusy(SyncError):
    """Another process has this replica's state folder."""

    state: str

    def __str__(self) -> str:
        return (
            f"another process keeps the replica state {self.state!r}. "
            "Stop that host agent, or give this one a workspace folder of its own."
        )


@dataclass(eq=False, repr=False)
class WatchEnded(SyncError):
    """The watched folder was deleted or replaced; the watcher sees nothing any more."""

    folder: str
    reason: str

    def __str__(self) -> str:
        return (
            f"watching {self.folder!r} ended: {self.reason}. Start the sync again once it is back."
        )


@dataclass(eq=False, repr=False)
class SyncFailed(SyncError):
    """A sync ended with errors; see `SyncReport.raise_for_errors`."""

    errors: tuple[str, ...]

    def __str__(self) -> str:
        return "sync failed:\n" + "\n".join(f"  {plain(line)}" for line in self.errors)
