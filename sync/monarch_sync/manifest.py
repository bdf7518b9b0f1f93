"""Manifest: all entries of a workspace, and the digest that names this state.

Every folder on the way to an entry is an entry itself. The digest is made from the sum of the
entries' own digests, so a changed file costs one subtraction and one addition, however large the
tree; `replace` also remembers what it changed, so that comparing neighbours looks at nothing
else, and shares all other entries with the manifest that it started from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from monarch_sync.digest import DIGEST_NAME, digest_bytes
from monarch_sync.entry import Entry, Kind, Row, from_wire, parent_of, to_wire
from monarch_sync.errors import BadManifest

_MODULUS = 1 << 128
_MIN_OVER = 64


class _Encoded(msgspec.Struct, array_like=True):
    digest_name: str
    rows: list[Row]


class _Base:
    """Entries that several manifests share, and what can be looked up in them. Never changes."""

    __slots__ = ("_by_digest", "_children", "entries")

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self._by_digest: dict[bytes, str] | None = None
        self._children: dict[str, list[str]] | None = None

    def path_of(self, digest: bytes) -> str | None:
        if self._by_digest is None:
            files = (entry for entry in self.entries.values() if entry.kind is Kind.FILE)
            self._by_digest = {entry.digest: entry.path for entry in files}
        return self._by_digest.get(digest)

    def children(self, folder: str) -> list[str]:
        if self._children is None:
            children: dict[str, list[str]] = {}
            for path in self.entries:
                children.setdefault(parent_of(path), []).append(path)
            self._children = children
        return self._children.get(folder, [])


class Manifest:
    """An immutable set of entries, one a path. Iterates in canonical order (by path)."""

    __slots__ = (
        "_base", "_len", "_num_files", "_over", "_over_digests", "_rows", "_sum",
        "digest", "digest_name", "lineage",
    )  # fmt: skip

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._base = _Base({entry.path: entry for entry in entries})
        # What this manifest has otherwise than its base: small, so that copying it is cheap.
        self._over: dict[str, Entry | None] = {}
        self._over_digests: dict[bytes, str] | None = None
        self._rows: list[Row] | None = None
        self._sum = sum(entry.fold() for entry in self._base.entries.values()) % _MODULUS
        self._len = len(self._base.entries)
        self._num_files = sum(e.kind is Kind.FILE for e in self._base.entries.values())
        self.digest_name = DIGEST_NAME
        self.digest = self._name()
        self.lineage: tuple[bytes, frozenset[str]] | None = None

    @property
    def num_files(self) -> int:
        """How many of the entries are files."""
        return self._num_files

    def __len__(self) -> int:
        return self._len

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.get(path) is not None

    def __iter__(self) -> Iterator[Entry]:
        entries = self._merged()
        return (entries[path] for path in sorted(entries))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Manifest):
            return NotImplemented
        return self.digest == other.digest and self._len == other._len

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Manifest {self.digest.hex()[:8]}, {len(self)} entries>"

    def get(self, path: str) -> Entry | None:
        """The entry at `path`, if there is one."""
        if path in self._over:
            return self._over[path]
        return self._base.entries.get(path)

    def path_of(self, digest: bytes) -> str | None:
        """A path whose file has this content. May forget a twin after `replace`."""
        if self._over_digests is None:
            over = (entry for entry in self._over.values() if entry is not None and entry.digest)
            self._over_digests = {entry.digest: entry.path for entry in over}
        if digest in self._over_digests:
            return self._over_digests[digest]
        path_there = self._base.path_of(digest)
        return None if path_there in self._over else path_there

    def children(self, folder: str) -> list[str]:
        """The paths right inside a folder ("" = the root), in no order."""
        paths = [path for path in self._base.children(folder) if path not in self._over]
        own = (path for path, entry in self._over.items() if entry is not None)
        return paths + [path for path in own if parent_of(path) == folder]

    def below(self, path: str) -> list[str]:
        """The paths inside a folder, at any depth, in canonical order."""
        prefix = path + "/" if path else ""
        found = [p for p, e in self._over.items() if e is not None and p.startswith(prefix)]
        folders = [path]
        while folders:
            for inner in self._base.children(folders.pop()):
                if self._base.entries[inner].kind is Kind.DIR:
                    folders.append(inner)
                if inner not in self._over:
                    found.append(inner)
        return sorted(found)

    def changed_paths(self, base: Manifest) -> set[str]:
        """The paths at which this manifest and `base` differ."""
        if self.lineage and self.lineage[0] == base.digest:
            candidates: Iterable[str] = self.lineage[1]
        else:
            candidates = self._base.entries.keys() | self._over.keys() | base._over.keys()
            if base._base is not self._base:
                candidates |= base._base.entries.keys()
        mine, theirs = self.get, base.get
        return {path for path in candidates if mine(path) != theirs(path)}

    def replace(self, changed: Iterable[Entry] = (), removed: Iterable[str] = ()) -> Manifest:
        """This manifest with some entries put in or changed, and some paths taken out."""
        new = Manifest()
        new._base, new._over = self._base, self._over.copy()
        new._sum, new._len, new._num_files = self._sum, self._len, self._num_files
        touched = {path for path in removed if new._put(path, None)}
        for entry in changed:
            new._put(entry.path, entry)
            touched.add(entry.path)
        new._sum %= _MODULUS
        if len(new._over) > max(_MIN_OVER, len(new._base.entries) >> 6):
            new._base, new._over = _Base(new._merged()), {}
        new.digest = new._name()
        new.lineage = (self.digest, frozenset(touched))
        return new

    def check(self, base: Manifest | None = None) -> None:
        """Raise `BadManifest` where a path's folder is missing, or is no folder.

        `base`: a manifest known to be sound; only what differs from it is looked at.
        """
        paths = list(self._merged()) if base is None else self.changed_paths(base)
        for path in paths:
            if path in self:
                self._check_parent(path)
            if base is not None and self._is_dir_no_more(path, base):
                for inner in self.below(path):
                    self._check_parent(inner)

    def encode(self) -> bytes:
        """The manifest as bytes; `decode` reads them."""
        return msgspec.msgpack.encode(_Encoded(self.digest_name, self.rows()))

    def rows(self) -> list[Row]:
        """All entries in canonical order, as they travel. Kept for the next host."""
        if self._rows is None:
            self._rows = [entry.to_row() for entry in self]
        return self._rows

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """The manifest in `raw`; `BadManifest` if it is none, or if an entry breaks a rule."""
        try:
            encoded = msgspec.msgpack.decode(raw, type=_Encoded)
        except msgspec.MsgspecError as error:
            raise BadManifest("", f"cannot be read: {error}") from error
        return cls.from_rows(encoded.rows, encoded.digest_name)

    @classmethod
    def from_rows(cls, rows: list[Row], digest_name: str = DIGEST_NAME) -> Manifest:
        """The manifest of rows that came from outside; `BadManifest` names the bad entry."""
        if digest_name != DIGEST_NAME:
            raise BadManifest("", f"uses the digest {digest_name!r}; this side knows {DIGEST_NAME}")
        manifest = cls(Entry.from_row(row) for row in rows)
        if len(manifest) != len(rows):
            raise BadManifest(_twice(rows), "appears twice")
        manifest.check()
        return manifest

    def _is_dir_no_more(self, path: str, base: Manifest) -> bool:
        old, new = base.get(path), self.get(path)
        return old is not None and old.is_dir and (new is None or not new.is_dir)

    def _check_parent(self, path: str) -> None:
        parent = parent_of(path)
        above = self.get(parent)
        if parent and above is None:
            raise BadManifest(path, f"lies in {parent!r}, which has no entry")
        if above is not None and not above.is_dir:
            raise BadManifest(path, f"lies in {parent!r}, which is a {above.kind.value}")

    def _merged(self) -> dict[str, Entry]:
        entries = self._base.entries.copy()
        for path, entry in self._over.items():
            if entry is None:
                entries.pop(path, None)
            else:
                entries[path] = entry
        return entries

    def _put(self, path: str, entry: Entry | None) -> bool:
        """Have `entry` at a path; whether something stood there before."""
        before = self.get(path)
        for one, sign in ((before, -1), (entry, 1)):
            if one is not None:
                self._sum += sign * one.fold()
                self._len += sign
                self._num_files += sign * (one.kind is Kind.FILE)
        if before is not None or entry is not None:
            self._over[path] = entry
        return before is not None

    def _name(self) -> bytes:
        total = self._sum.to_bytes(16, "big") + self._len.to_bytes(8, "big")
        return digest_bytes(DIGEST_NAME.encode() + total)


def encode_paths(paths: Iterable[str]) -> list[bytes]:
    return [to_wire(path) for path in paths]


def decode_paths(raw: Iterable[bytes]) -> list[str]:
    return [from_wire(path) for path in raw]


def _twice(rows: list[Row]) -> str:
    seen: set[bytes] = set()
    for row in rows:
        if row[0] in seen:
            return from_wire(row[0])
        seen.add(row[0])
    return ""
