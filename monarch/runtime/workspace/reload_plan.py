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
# was a third of all bytes. Of an edit it is not worth the time.
_COMPRESSED_BYTES = 16 << 10
_FRAME = b"\x28\xb5\x2f\xfd"  # begins what zstd makes, and neither of what else a plan may be


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
    """The files of a push on its hosts, for owners, which have them shown.

    ``owners`` says which owner sees to which host; "" is the author. ``num_files`` are staged, by
    host. ``sharing`` hosts see a folder that another host writes; ``shared`` names the files there
    that have changed, of ``num_shared``, as ``Share`` takes them. With ``best_effort`` a host that
    cannot show the files is left behind.
    """

    owners: dict[Uid, Uid]
    places: list[ProcAddress]
    num_files: dict[Uid, int]
    sharing: list[Uid] = []
    shared: bytes = b""
    num_shared: int = 0
    best_effort: bool = False


class ReloadPlan(msgspec.Struct):
    """The files that a generation changes, by the host that they lie on.

    ``local`` are the author's own files, for processes that run them where they are, on the
    author's machine. ``paths`` are import folders by host. ``covers`` are all hosts that have this
    state then, ``behind`` those that are left with another. ``author`` names the pushing user, for
    people, ``folders`` where the workspace's folders land. ``family`` names the workspace, and
    ``others`` are hosts which had a state of it, or of another together with hosts of this push,
    and are left with that: the owner of all adds them. An upgrade of a class has no files, and a
    number below 0: it is for the procs of one mesh, and is not passed further down. ``attempt`` is
    different for each push, also after a failed one. ``staged`` is for owners only.
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
    family: str = ""
    covers: list[Uid] = []
    others: list[HostCode] = []
    behind: list[Uid] = []
    upgrade: Upgrade | None = None
    attempt: str = ""
    staged: StagedFiles | None = None

    def code_change(self, old_generation: int) -> CodePush:
        """Return the change of hosts' code by a switch to this plan, in a process that ran
        ``old_generation``."""
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
            # Names that are no UTF-8 have surrogates, which JSON takes; it takes longer, too.
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
    """Old code that still runs in some processes: each text with the labels of the processes.

    ``kept`` is old by design. ``num_procs`` have looked, for at most so many ``seconds``.
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
    """The outcome of a step in a process and in those it owns. ``busy``: another author pushes.

    ``respawn`` lists changes that a running process cannot take, and why; ``is_replaced`` says that
    the answering process will be replaced by a new one. ``replaced`` are the labels of all such
    processes, and ``replaced_actors`` the actors that are made again in them, by class.
    ``problems`` occurred when it was too late to go back, ``notes`` is further information,
    ``warnings`` are errors that new code will raise, ``for_next_start`` those of them about the
    next start, ``compiles_again`` the functions that torch.compile compiles at their next call.
    ``late`` processes have not reached a fence or a halt in time, which may be tried again.
    """

    modules: list[str] = []
    functions: list[str] = []
    classes: list[str] = []
    reran: list[str] = []
    respawn: list[str] = []
    actors: dict[str, int] = {}
    is_replaced: bool = False
    replaced: list[str] = []
    replaced_actors: dict[str, int] = {}
    problems: list[str] = []
    notes: list[str] = []
    warnings: list[str] = []
    for_next_start: list[str] = []
    compiles_again: list[str] = []
    num_procs: int = 0
    seconds: float = 0.0
    refused: list[RefusedFile] = []
    late: list[RefusedFile] = []
    busy: str = ""

    @property
    def vote(self) -> Vote:
        """The vote of this process: NO if files are refused or it is busy, LATE if some files are
        late.
        """
        return Vote.NO if self.refused or self.busy else Vote.LATE if self.late else Vote.YES

    def begins_anew(self) -> None:
        """Handle that the next start comes at once: drop the warnings that are about it."""
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
    """The end of an owner's switch, which ``is_done``, or was taken back.

    ``replies`` of its hosts are of those that show the files, ``failed`` says why others do not,
    ``looked`` are sharing hosts that have seen the files. ``is_taken_back``: hosts did show them.
    ``outcome`` says what was switched, or who refused; ``seconds`` by step.
    """

    is_done: bool = False
    is_taken_back: bool = False
    outcome: ReloadOutcome = msgspec.field(default_factory=ReloadOutcome)
    replies: dict[Uid, bytes] = {}
    failed: dict[Uid, str] = {}
    looked: list[Uid] = []
    seconds: dict[str, float] = {}
