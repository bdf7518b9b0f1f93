"""Entry: one path of a manifest, and the rules that every entry obeys.

A path is relative, "/"-separated, without empty parts, `.` or `..`; it is a `str` with surrogate
escapes, so a name that is not UTF-8 survives, and travels as bytes. A link's target is relative,
may climb with leading `..` only as far as the root, and has no `..` after a name: the name could
itself be a link, and then what reads as inside would lead out.

The rules are checked where an entry arrives from outside (`Entry.from_row`), and not again later.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from monarch_sync.content.digest import DIGEST_BYTES
from monarch_sync.errors import BadManifest

RESERVED = ".monarch"  # names that end in this are reserved for the state of replicas and sessions

_MAX_DEPTH = 255
TOO_DEEP = f"lies in more than {_MAX_DEPTH} folders"
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4095
_SURELY_SHORT = _MAX_NAME_BYTES // 4  # characters

Row = tuple[bytes, str, int, int, bytes, bytes, tuple[tuple[bytes, int], ...]]


class EntryKind(str, enum.Enum):
    """The kind of entry at a path."""

    FILE = "file"
    DIR = "dir"
    LINK = "link"


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One path, and what is there: a file, a folder or a link.

    `mode`: permission bits, at most 0o777. `size`: bytes, of a file. `digest`: of a file's content.
    `target`: of a link. `chunks`: (digest, size) of the pieces of a large file; empty if the file
    is sent whole.
    """

    path: str
    kind: EntryKind
    mode: int = 0o777
    size: int = 0
    digest: bytes = b""
    target: str = ""
    chunks: tuple[tuple[bytes, int], ...] = ()

    @property
    def is_file(self) -> bool:
        return self.kind is EntryKind.FILE

    @property
    def is_dir(self) -> bool:
        return self.kind is EntryKind.DIR

    @property
    def is_link(self) -> bool:
        return self.kind is EntryKind.LINK

    def to_row(self) -> Row:
        """Return the entry as it is sent and stored."""
        path, target = to_wire(self.path), to_wire(self.target)
        return (path, self.kind.value, self.mode, self.size, self.digest, target, self.chunks)

    @classmethod
    def from_row(cls, row: Row) -> Entry:
        """Return the entry in a row. Raises `BadManifest` if it breaks a rule."""
        path, kind, mode, size, digest, target, chunks = row
        entry_kind = _KINDS.get(kind)
        if entry_kind is None:
            raise BadManifest(from_wire(path), f"is of unknown kind {kind!r}")
        entry = cls(from_wire(path), entry_kind, mode, size, digest, from_wire(target), chunks)
        check(entry)
        return entry


_KINDS = {kind.value: kind for kind in EntryKind}


def to_wire(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def from_wire(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def parent_of(path: str) -> str:
    """Return the folder of a path; "" for the root."""
    return path.rpartition("/")[0]


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, deepest first, without the root."""
    while path := parent_of(path):
        yield path


def check(entry: Entry) -> None:
    """Raise `BadManifest` if the entry breaks a rule."""
    reason = path_fault(entry.path) or _shape_fault(entry)
    if reason:
        raise BadManifest(entry.path, reason)


def path_fault(path: str) -> str:
    """Return why this cannot be a manifest path; "" if it can."""
    if len(path) > _SURELY_SHORT and _is_too_long(path):
        return "has a name that is too long for any file system"
    if is_too_deep(path):
        return TOO_DEEP
    if path and path[0] not in "./" and path[-1] != "/" and "/." not in path and "//" not in path:
        return "holds a NUL" if "\0" in path else ""  # nearly all are so plain
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "holds a NUL"
    if ".." in parts:
        return "holds `..`"
    if "" in parts or "." in parts:
        return "has an empty part"
    for part in parts:
        if is_reserved(part):
            return f"lies in {part}/, which is the replica's own"
    return ""


def is_too_deep(path: str) -> bool:
    """Return whether a path lies in more folders than a manifest may have."""
    return len(path) > 2 * _MAX_DEPTH and path.count("/") > _MAX_DEPTH


def is_reserved(name: str) -> bool:
    """Return whether a file's or folder's name is reserved for our own files."""
    return name.endswith(RESERVED) and name.startswith(".")


def _is_too_long(path: str) -> bool:
    raw = path if path.isascii() else to_wire(path)
    if len(raw) <= _MAX_NAME_BYTES:
        return False
    names = raw.split("/") if isinstance(raw, str) else raw.split(b"/")
    return len(raw) > _MAX_PATH_BYTES or any(len(name) > _MAX_NAME_BYTES for name in names)


def target_fault(path: str, target: str, *, depth: int = 0) -> str:
    """Return why a link at `path` may not point to `target`; "" if it may.

    The link may not lead out of the first `depth` folders of its path. With 0, it may lead to any
    path inside the root.
    """
    if not target or "\0" in target:
        return "is a link to nothing"
    if len(target) > _SURELY_SHORT and _is_too_long(target):
        return "is a link to a name that is too long for any file system"
    if target.startswith("/"):
        return f"is a link to the absolute path {target!r}; make it relative"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if ".." in parts[climbs:]:
        return f"is a link to {target!r}, with `..` after a name"
    if climbs > path.count("/") - depth:
        return f"is a link to {target!r}, which leads out"
    return ""


def _shape_fault(entry: Entry) -> str:
    kind = entry.kind
    if not 0 <= entry.mode <= 0o777:
        return f"has mode {entry.mode:o}, beyond permission bits"
    if kind is EntryKind.FILE:
        if len(entry.digest) != DIGEST_BYTES or entry.size < 0:
            return "is a file without a digest"
    elif entry.digest or entry.size or entry.chunks:
        return "has content, but is no file"
    elif kind is EntryKind.LINK:
        return target_fault(entry.path, entry.target)
    return "has a target, but is no link" if entry.target else ""
