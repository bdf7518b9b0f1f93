"""Every error that users meet.

    Exception
    ├── ActorError                 an endpoint raised, and this call asked for the answer
    └── RuntimeError
        └── MonarchError           something of the runtime, not of the user's code
            ├── SupervisionError   a member of the mesh is dead or failed
            │   └── MessageTooLarge    a message is beyond the limit; a ValueError too
            ├── RemoteMemoryError  memory of another process is not there any longer
            ├── HostUnreachable    no host agent answers at an address
            ├── HostBusy           a host agent serves another client already
            ├── GenerationBehind   a rank runs older code than the call that came to it
            ├── JobError           an allocation cannot be created, found or used
            ├── ReloadRefused      live actors did not take a new version of their class
            └── WireError          a peer sent something that is not a message of ours

All of them survive pickling with their fields.
"""

from __future__ import annotations

import textwrap
import traceback

import msgspec

__all__ = [
    "ActorError",
    "GenerationBehind",
    "HostBusy",
    "HostUnreachable",
    "JobError",
    "MeshFailure",
    "MessageTooLarge",
    "MonarchError",
    "ReloadRefused",
    "RemoteMemoryError",
    "SupervisionError",
    "WireError",
]

_MAX_NAMES = 8
_REMOTE_TRACEBACK = "Traceback of where the remote call failed (most recent call last):"


class ActorError(Exception):
    """An endpoint raised an exception.

    ``exception`` is the original exception; ``str()`` shows its traceback as it was on the
    remote side. ``rank`` is the member of its mesh that raised, counted from 0 in the mesh as
    spawned; ``None`` if it is not known.
    """

    def __init__(
        self,
        exception: BaseException,
        message: str = "A remote actor call has failed.",
        formatted: str | None = None,
        rank: int | None = None,
    ) -> None:
        self.exception = exception
        self.rank = rank
        self.message = message
        self.exception_formatted = formatted or format_remote(exception)
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message}\n {self.exception_formatted}"

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.exception, self.message, self.exception_formatted, self.rank)


def format_remote(exception: BaseException) -> str:
    """Return the traceback of an exception, with a heading that marks it as a remote one."""
    text = "".join(traceback.format_exception(exception))
    return text.replace("Traceback (most recent call last):", _REMOTE_TRACEBACK, 1)


class MonarchError(RuntimeError):
    """Base of the runtime's own errors. Fields are positional, so that pickling keeps them."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.args


class _Failed(msgspec.Struct, frozen=True):
    mesh_name: str
    crashed_ranks: tuple[int, ...]
    reason: str
    kind: str = "actor"


class MeshFailure(_Failed, frozen=True, kw_only=True):
    """The report that a supervisor gets: which actor failed, where, why, and its last output.

    ``crashed_ranks`` are ranks of the mesh ``mesh_name``, whose members are ``kind`` ("proc" or
    "actor"); ``members`` names them in words. ``cause`` is the failure of something that the member
    owned and did not handle, or failed to handle: then ``reason`` says how. Failures with the same
    ``origin`` come from one event. ``expected``: somebody asked for the end.
    """

    host: str = ""
    last_output: tuple[str, ...] = ()
    mesh: None = None
    members: tuple[str, ...] = ()
    lost_actors: tuple[str, ...] = ()
    origin: str = ""
    cause: MeshFailure | None = None
    expected: bool = False
    log_file: str = ""

    @property
    def event(self) -> str:
        """Return why it failed, without the actor's name."""
        return self.reason or self.root_cause.reason

    @property
    def root_cause(self) -> MeshFailure:
        """The first cause of this failure, maybe through others; itself if it has no cause."""
        return self if self.cause is None else self.cause.root_cause

    @property
    def who(self) -> str:
        """Return the names of the members that failed; if they are many, the first few."""
        return _shortened(self.members) or self.mesh_name

    def with_reason(self, reason: str) -> MeshFailure:
        """Return the same failure with another reason."""
        return msgspec.structs.replace(self, reason=reason)

    def report(self) -> str:
        """Return the failure as a text for users: the actor, the place, the reason, and the last
        lines printed.
        """
        many = "s" if len(self.crashed_ranks) > 1 else ""
        ranks = ", ".join(str(rank) for rank in self.crashed_ranks)
        where = f" (rank{many} {ranks})" if ranks else ""
        where += f" on {self.host}" if self.host else ""
        if self.kind != "actor":
            return f"The {self.kind}{many} {self.who}{where} failed: {self._story()}"
        heading = f"The actor{many} {self.who}{where} and all its descendants have failed:"
        if self.cause is None:
            return f"{heading}\nThis occurred because the actor itself failed.\n{self._error()}"
        if self.reason:
            return (
                f"{heading}\nThis occurred because the actor itself failed.\n{self._error()}\n"
                f"This error occurred during the handling of another failure:\n"
                f"{textwrap.indent(self.cause.report(), '  ')}"
            )
        why = "This occurred because it owns what failed, and did not handle that:"
        return f"{heading}\n{why}\n{self.root_cause.report()}"

    def _error(self) -> str:
        if self.cause is not None:
            return f"The error was:\n{self.reason}"
        return f"The error was:\n{self._story()}"

    def _story(self) -> str:
        lines = [self.reason]
        if self.lost_actors:
            lines.append(f"  lost with it: {_shortened(self.lost_actors)}")
        if self.last_output:
            lines.append("  its last output was:")
            lines.extend(f"    {line}" for line in self.last_output)
        if self.log_file:
            lines.append(f"  all of it is in {self.log_file}")
        return "\n".join(lines)

    def __str__(self) -> str:
        rank = f", rank={self.crashed_ranks[0]}" if len(self.crashed_ranks) == 1 else ""
        return (
            f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={list(self.crashed_ranks)}, "
            f"event={self.event}{rank})"
        )


def _shortened(names: tuple[str, ...]) -> str:
    """Return the first names as text, with the number of the others."""
    num_more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {num_more} more" if num_more > 0 else "")


class SupervisionError(MonarchError):
    """A call cannot be answered because a member of its mesh is dead or has failed."""

    def __init__(
        self, message: str, endpoint: str | None = None, failure: MeshFailure | None = None
    ) -> None:
        super().__init__(message, endpoint, failure)
        self.message = message
        self.endpoint = endpoint
        self.failure = failure

    def __str__(self) -> str:
        return self.message


class MessageTooLarge(SupervisionError, ValueError):
    """A message is beyond ``max_message_bytes``, and was not sent."""


class RemoteMemoryError(MonarchError):
    """Registered memory cannot be used: its owner has died, it was dropped or freed, or the
    connection is broken. Discard data that was read so far.
    """

    def __init__(self, buffer: str, owner: str, reason: str) -> None:
        super().__init__(buffer, owner, reason)
        self.buffer = buffer
        self.owner = owner
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.buffer}, owned by {self.owner}, cannot be used: {self.reason}"


class HostUnreachable(MonarchError):
    """No host agent answered at ``url`` for ``waited_seconds``."""

    def __init__(self, url: str, waited_seconds: float, detail: str = "") -> None:
        super().__init__(url, waited_seconds, detail)
        self.url = url
        self.waited_seconds = waited_seconds
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"no host agent answered at {self.url} within {self.waited_seconds:.1f} s{detail}. "
            f"Start one on that machine with `monarch host --address {self.url}`, or bring the "
            "allocation up again with `monarch apply`."
        )


class HostBusy(MonarchError):
    """The host agent at ``url`` serves another client; ``holder`` says which."""

    def __init__(self, url: str, holder: str) -> None:
        super().__init__(url, holder)
        self.url = url
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"the host agent at {self.url} is in use by {self.holder}. A host serves one client "
            "at a time: end that program first, or take the host over with "
            "`attach_to_workers(..., takeover=True)`, which stops its procs."
        )


class GenerationBehind(MonarchError):
    """A rank runs older code than the call that came to it, and has not run the call.

    ``who`` names the actor, ``runs`` the generation of its process and ``wanted`` the call's.
    """

    def __init__(self, who: str, method: str, runs: int, wanted: int, why: str = "") -> None:
        self.who, self.method, self.runs, self.wanted, self.why = who, method, runs, wanted, why
        because = f" ({why})" if why else ""
        super().__init__(
            f"{who} runs generation {runs} of the workspace{because}, and this call of "
            f"{method!r} comes from generation {wanted}: it was not run. Push the workspace to its "
            "host (sync_workspace, or monarch sync), or spawn its processes again"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.who, self.method, self.runs, self.wanted, self.why)


class JobError(MonarchError):
    """An allocation cannot be created, found or used."""


class ReloadRefused(MonarchError):
    """Live actors did not take a new version of their class; all of them run the old one."""


class WireError(MonarchError):
    """Bytes from a peer are not a message, or a message of another version of the wire format."""
