"""Manifest: all entries of a workspace, and the digest that names this state.

Every folder on the way to an entry is an entry itself. The digest is made from the sum of the
entries' own digests, so a changed file costs one subtraction and one addition, however large the
tree; `replace` also remembers what it changed, so that comparing neighbours looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from monarch_sync.digest import DIGEST_NAME, digest_bytes
from monarch_sync.entry import Entry, Row, from_wire, parent_of, to_wire
from monarch_sync.errors import BadManifest

_MODULUS = 1 << 128


class _Encoded(msgspec.Struct, array_like=True):
    digest_name: str
    rows: list[Row]


class Manifest:
    """An immutable set of entries, one a path. Iterates in canonical order (by path)."""

    __slots__ = ("_by_digest", "_entries", "_sum", "digest", "digest_name", "lineage")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[str, Entry] = {entry.path: entry for entry in entries}
        self._sum = sum(entry.fold() for entry in self._entries.values()) % _MODULUS
        self._by_digest: dict[bytes, str] | None = None
        self.digest_name = DIGEST_NAME
        self.digest = self._name()
        self.lineage: tuple[bytes, frozenset[str]] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[path] for path in sorted(self._entries))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Manifest {self.digest.hex()[:8]}, {len(self)} entries>"

    def get(self, path: str) -> Entry | None:
        """The entry at `path`, if there is one."""
        return self._entries.get(path)

    def path_of(self, digest: bytes) -> str | None:
        """A path whose file has this content. May forget a twin after `replace`."""
        if self._by_digest is None:
            files = (entry for entry in self._entries.values() if entry.is_file)
            self._by_digest = {entry.digest: entry.path for entry in files}
        return self._by_digest.get(digest)

    def below(self, path: str) -> list[str]:
        """The paths inside a folder, at any depth, in canonical order. Looks at every entry."""
        prefix = path + "/" if path else ""
        return sorted(other for other in self._entries if other.startswith(prefix))

    def changed_paths(self, base: Manifest) -> set[str]:
        """The paths at which this manifest and `base` differ."""
        if self.lineage and self.lineage[0] == base.digest:
            candidates: Iterable[str] = self.lineage[1]
        else:
            candidates = self._entries.keys() | base._entries.keys()
        mine, theirs = self._entries.get, base._entries.get
        return {path for path in candidates if mine(path) != theirs(path)}

    def replace(self, changed: Iterable[Entry] = (), removed: Iterable[str] = ()) -> Manifest:
        """This manifest with some entries put in or changed, and some paths taken out."""
        new = Manifest()
        new._entries = self._entries.copy()
        new._by_digest = None if self._by_digest is None else self._by_digest.copy()
        new._sum = self._sum
        touched = {path for path in removed if new._drop(path)}
        for entry in changed:
            new._drop(entry.path)
            new._put(entry)
            touched.add(entry.path)
        new._sum %= _MODULUS
        new.digest = new._name()
        new.lineage = (self.digest, frozenset(touched))
        return new

    def check(self, base: Manifest | None = None) -> None:
        """Raise `BadManifest` where a path's folder is missing, or is no folder.

        `base`: a manifest known to be sound; only what differs from it is looked at.
        """
        paths = list(self._entries) if base is None else self.changed_paths(base)
        for path in paths:
            if path in self._entries:
                self._check_parent(path)
            if base is not None and self._is_dir_no_more(path, base):
                for inner in self.below(path):
                    self._check_parent(inner)

    def encode(self) -> bytes:
        """The manifest as bytes; `decode` reads them."""
        return msgspec.msgpack.encode(_Encoded(self.digest_name, self.rows()))

    def rows(self) -> list[Row]:
        """All entries in canonical order, as they travel."""
        return [entry.to_row() for entry in self]

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
        above = self._entries.get(parent)
        if parent and above is None:
            raise BadManifest(path, f"lies in {parent!r}, which has no entry")
        if above is not None and not above.is_dir:
            raise BadManifest(path, f"lies in {parent!r}, which is a {above.kind.value}")

    def _put(self, entry: Entry) -> None:
        self._entries[entry.path] = entry
        self._sum += entry.fold()
        if self._by_digest is not None and entry.is_file:
            self._by_digest[entry.digest] = entry.path

    def _drop(self, path: str) -> bool:
        entry = self._entries.pop(path, None)
        if entry is None:
            return False
        self._sum -= entry.fold()
        if self._by_digest is not None and self._by_digest.get(entry.digest) == path:
            del self._by_digest[entry.digest]
        return True

    def _name(self) -> bytes:
        total = self._sum.to_bytes(16, "big") + len(self._entries).to_bytes(8, "big")
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
