"""Messages of an owner to its processes about a prepared generation, and their answers."""

from __future__ import annotations

import json
import sys

import msgspec

from monarch.core.code_switch.table import Vote
from monarch.runtime.code_states import CodePush
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# A first push names thousands of files, once for each host, to every proc: over a slow link that
# was a third of all bytes. A small plan is not worth the time.
_COMPRESSED_BYTES = 16 << 10
_FRAME = b"\x28\xb5\x2f\xfd"  # the beginning of zstd's output, which no other plan has


class FileChange(msgspec.Struct, array_like=True, frozen=True):
    """A file that changes. ``path`` will have the present content of ``source``; an empty
    ``source`` means deleted."""

    path: str
    source: str


class Upgrade(msgspec.Struct, array_like=True, frozen=True):
    """A new class for the actors of a mesh. ``pickled``: the class as a pickle, with its
    buffers."""

    mesh: Uid
    pickled: list[bytes]


class StagedFiles(msgspec.Struct, kw_only=True):
    """The staged files of a push: which owner has which hosts show them, and which hosts share a
    folder that they must check.
    """

    #: The owner that is responsible for each host; "" is the author.
    owners: dict[Uid, Uid]
    #: The addresses of the hosts.
    places: list[ProcAddress]
    #: How many files are staged on each host.
    num_files: dict[Uid, int]
    #: The hosts that see a folder which another host, or the author, writes.
    sharing: list[Uid] = []
    #: The files that have changed there, in the form of ``Share``.
    shared: bytes = b""
    #: How many files the folder has in all.
    num_shared: int = 0
    #: Whether a host that cannot show the files is left behind.
    best_effort: bool = False


class ReloadPlan(msgspec.Struct):
    """A change of code for the processes of a push.

    An upgrade of a class has no files, and a negative number. It is for the procs of one mesh,
    which do not pass it to procs of their own.
    """

    generation: int
    digest: str
    #: How code changes: "auto", "patch", "respawn", or "off".
    mode: str
    #: The files that change on each host, and its import folders.
    hosts: dict[Uid, list[FileChange]] = {}
    paths: dict[Uid, list[str]] = {}
    #: The author's own files and import folders, for processes on the author's machine.
    local: list[FileChange] = []
    local_paths: list[str] = []
    #: The id of that machine.
    author_machine: str = ""
    #: The user who pushes, for people.
    author: str = ""
    #: The folders that the workspace's folders land in.
    folders: list[str] = []
    #: Names the workspace.
    family: str = ""
    #: All hosts that take part; those in ``behind`` keep another state.
    covers: list[Uid] = []
    #: Hosts outside of this push that keep another state of this workspace, or of a workspace that
    #: hosts of this push had. The client adds them.
    others: list[HostCode] = []
    behind: list[Uid] = []
    #: The new class, for an upgrade.
    upgrade: Upgrade | None = None
    #: Different for each push, also after a failed one.
    attempt: str = ""
    #: For owners only.
    staged: StagedFiles | None = None

    def code_change(self, old_generation: int) -> CodePush:
        """Return the message that tells which code the hosts run after a switch to this plan. Hosts
        that are left behind still run ``old_generation``.
        """
        covers = [host for host in self.covers if host not in self.behind]
        late = [host for host in self.covers if host in self.behind]
        others = [*self.others, *(HostCode(host, old_generation, "", self.family) for host in late)]
        return CodePush(self.generation, self.digest, self.family, covers, others)

    def for_procs(self) -> ReloadPlan:
        """Return the plan without the parts for owners only."""
        return msgspec.structs.replace(self, staged=None) if self.staged is not None else self

    def encode(self) -> bytes:
        """Return the plan as bytes, which `decode` reads."""
        try:
            data = msgspec.msgpack.encode(self)
        except UnicodeEncodeError:
            # Names that are not UTF-8 have surrogates. JSON takes them, but is slower.
            data = json.dumps(msgspec.to_builtins(self)).encode()
        return data if len(data) < _COMPRESSED_BYTES else zstd.compress(data, 1)

    @classmethod
    def decode(cls, raw: bytes | bytearray | memoryview) -> ReloadPlan:
        if bytes(raw[:4]) == _FRAME:
            raw = zstd.decompress(raw)
        if bytes(raw[:1]) == b"{":
            return msgspec.convert(json.loads(bytes(raw)), cls)
        return msgspec.msgpack.decode(raw, type=cls)


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
        position = f"{self.path}:{self.line}" if self.line else self.path
        lines = [position] if position else []
        if self.text:
            stripped = self.text.lstrip()
            lines.append(f"    {stripped}")
            if self.column:
                caret = max(self.column - 1 - (len(self.text) - len(stripped)), 0)
                lines.append("    " + " " * caret + "^")
        return "\n".join([*lines, self.message])


class AuditOutcome(msgspec.Struct):
    """Old code that still runs in some processes: in ``stale`` and ``kept``, each text with the
    labels of the processes that it is about.

    ``kept`` is code that stays old by design. ``num_procs`` processes were searched; the slowest
    took ``seconds``.
    """

    stale: dict[str, list[str]] = {}
    kept: dict[str, list[str]] = {}
    num_procs: int = 0
    seconds: float = 0.0

    def add(self, other: AuditOutcome) -> None:
        """Add the audit outcome of another process."""
        for mine, others in ((self.stale, other.stale), (self.kept, other.kept)):
            for text, labels in others.items():
                mine[text] = [*mine.get(text, ()), *labels]
        self.num_procs += other.num_procs
        self.seconds = max(self.seconds, other.seconds)

    def lines(self, labels_by_text: dict[str, list[str]]) -> list[str]:
        """Return a line for each text, with the ranks."""
        return [f"{text}{self._where(labels)}" for text, labels in labels_by_text.items()]

    def _where(self, labels: list[str]) -> str:
        if self.num_procs < 2:
            return ""
        if len(labels) == self.num_procs:
            return " (in all processes)"
        more = f" and {len(labels) - 3:,} more" if len(labels) > 3 else ""
        return f" (on {', '.join(labels[:3])}{more})"


_LISTS = (
    "modules", "functions", "classes", "reran", "respawn", "replaced", "problems", "notes",
    "warnings", "for_next_start", "compiles_again",
)  # fmt: skip


class ReloadOutcome(msgspec.Struct):
    """The outcome of a step in a process and in the processes that it owns."""

    #: The changed modules, functions and classes, and the modules that ran again.
    modules: list[str] = []
    functions: list[str] = []
    classes: list[str] = []
    reran: list[str] = []
    #: Changes that a running process cannot take, and why.
    respawn: list[str] = []
    #: How many actors have new code, by class.
    actors: dict[str, int] = {}
    #: Whether a new process will replace the answering one.
    is_replaced: bool = False
    #: The labels of all processes that will be replaced, and their actors, by class.
    replaced: list[str] = []
    replaced_actors: dict[str, int] = {}
    #: Errors that occurred when it was too late to go back.
    problems: list[str] = []
    #: Further information for people.
    notes: list[str] = []
    #: Errors that the new code will raise; the second list has those about the next start.
    warnings: list[str] = []
    for_next_start: list[str] = []
    #: Functions that torch.compile compiles at their next call.
    compiles_again: list[str] = []
    #: How many processes have answered, and the longest time that one needed.
    num_procs: int = 0
    seconds: float = 0.0
    refused: list[RefusedFile] = []
    #: Processes that have not reached a fence or a halt in time. It may be tried again.
    late: list[RefusedFile] = []
    #: Why the step must be tried again later: another author pushes. "" if none does.
    busy: str = ""

    @property
    def vote(self) -> Vote:
        """The vote of this process. It is NO if files are refused or the process is busy, LATE if
        some files are late, and else YES.
        """
        return Vote.NO if self.refused or self.busy else Vote.LATE if self.late else Vote.YES

    def begins_anew(self) -> None:
        """Drop the warnings about the next start, because the process is started again at once."""
        self.warnings = [text for text in self.warnings if text not in self.for_next_start]
        self.for_next_start = []

    def add(self, other: ReloadOutcome) -> None:
        """Add the outcome of another process."""
        for name in _LISTS:
            if items := getattr(other, name):  # most say nothing
                mine = getattr(self, name)
                mine.extend(item for item in items if item not in mine)
        for totals, counts in (
            (self.actors, other.actors),
            (self.replaced_actors, other.replaced_actors),
        ):
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
        self.num_procs += other.num_procs
        self.seconds = max(self.seconds, other.seconds)
        self.refused.extend(other.refused)
        self.late.extend(other.late)
        self.busy = self.busy or other.busy


class Switched(msgspec.Struct):
    """The result of an owner's switch."""

    #: Whether the new code runs; else everything was taken back.
    is_done: bool = False
    #: Whether hosts showed the new files and then restored the old ones.
    is_taken_back: bool = False
    #: The changes, or the refusals.
    outcome: ReloadOutcome = msgspec.field(default_factory=ReloadOutcome)
    #: The answers of the hosts that show the files.
    replies: dict[Uid, bytes] = {}
    #: Why other hosts do not show them.
    failed: dict[Uid, str] = {}
    #: The hosts that have checked a folder which another host writes.
    looked: list[Uid] = []
    #: The time of each step.
    seconds: dict[str, float] = {}
