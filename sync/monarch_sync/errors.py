"""Every error of `monarch_sync`, in one tree.

    SyncError
    ├── WorkspaceMissing      a folder of the workspace is not there
    ├── WorkspaceEmptied      nothing of a folder is synced, and hosts have files of it
    ├── BadManifest           an entry that no manifest may hold
    ├── BadMessage            bytes that are not a message of this protocol
    │   └── VersionMismatch   a message of another protocol version
    ├── MovedUnderfoot        a file changed between the scan and the sending
    ├── PushRefused           a host said no
    ├── GenerationUnknown     no host remembers a generation
    ├── ContentGone           a content that no host has any more
    ├── ReplicaBusy           another process keeps this replica
    ├── WatchEnded            the watched folder is gone
    └── SyncFailed            a report with errors, raised on request

Each carries its fields as attributes and survives pickling with them: the fields are the arguments,
the text is made from the fields.
"""

from __future__ import annotations

from monarch_sync.words import plain, printable


class SyncError(Exception):
    """Base of every error of this package."""


class WorkspaceMissing(SyncError):
    """A workspace folder does not exist, is not a directory, or cannot be listed."""

    def __init__(self, folder: str, reason: str = "does not exist") -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"workspace folder {self.folder!r} {self.reason}. "
            "Fix that, or take it out of Workspace(dirs=...)."
        )


class WorkspaceEmptied(SyncError):
    """A workspace folder has nothing to be synced, and hosts have files of it. Nothing was changed;
    a push with ``allow_empty`` deletes the files there."""

    def __init__(self, folder: str, num_files: int) -> None:
        super().__init__(folder, num_files)
        self.folder = folder
        self.num_files = num_files

    def __str__(self) -> str:
        have = "1 file" if self.num_files == 1 else f"{self.num_files:,} files"
        return (
            f"nothing in workspace folder {self.folder!r} is there to be synced, and hosts have "
            f"{have} of it, which a push would delete. Is its disk not mounted, or does a pattern "
            "leave out all of it? If the hosts' files are to go: `monarch sync --allow-empty`, in "
            "a program sync_workspace(..., allow_empty=True)."
        )


class BadManifest(SyncError):
    """A manifest has an entry that could write outside of its folder, or that contradicts
    another."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"manifest entry {self.path!r} {self.reason}. The manifest was refused as a whole."


class BadMessage(SyncError):
    """Bytes that do not decode to a message of the push protocol."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

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


class MovedUnderfoot(SyncError):
    """A file's content is no longer what the scan found; scan again, then push again."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path!r} changed between the scan and the push. Scan again and push again."


class PushRefused(SyncError):
    """A host refused a push; nothing visible changed there."""

    def __init__(self, code: str, reason: str, path: str = "") -> None:
        super().__init__(code, reason, path)
        self.code = code
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        about = f" at {self.path!r}" if self.path else ""
        why = f"{printable(self.reason)} ({printable(self.code)})"
        return f"the host refused the push{about}: {why}"


class GenerationUnknown(SyncError):
    """No host remembers this generation."""

    def __init__(self, generation: int, reason: str = "") -> None:
        super().__init__(generation, reason)
        self.generation = generation
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no host can tell what was in generation {self.generation}"
            + (f" ({printable(self.reason)})" if self.reason else "")
            + ". `monarch sync history` lists those that are remembered."
        )


class ContentGone(SyncError):
    """A content of an earlier generation was trimmed from the store of every host."""

    def __init__(
        self, path: str, num_hosts: int, num_missing: int = 1, generation: int = 0
    ) -> None:
        super().__init__(path, num_hosts, num_missing, generation)
        self.path = path
        self.num_hosts = num_hosts
        self.num_missing = num_missing
        self.generation = generation

    def __str__(self) -> str:
        where = "the store of the host" if self.num_hosts == 1 else f"all {self.num_hosts} stores"
        of = f" of generation {self.generation}" if self.generation else ""
        rest = self.num_missing - 1
        more = f" and {rest} other {'content' if rest == 1 else 'contents'}" if rest else ""
        return (
            f"the content of {self.path!r}{more}{of} was trimmed from {where}, which keep the "
            "latest only. Nothing was changed. Check that state out here, and `monarch sync` it."
        )


class ReplicaBusy(SyncError):
    """Another process keeps this replica's state folder."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state

    def __str__(self) -> str:
        return (
            f"another process keeps the replica state {self.state!r}. "
            "Stop that host agent, or give this one a workspace folder of its own."
        )


class WatchEnded(SyncError):
    """The watched folder was deleted or replaced; the watcher sees nothing any more."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"watching {self.folder!r} ended: {self.reason}. Start the sync again once it is back."
        )


class SyncFailed(SyncError):
    """A sync ended with errors; see `SyncReport.raise_for_errors`."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "sync failed:\n" + "\n".join(f"  {plain(line)}" for line in self.errors)
