"""Manifest: all entries of a workspace, and the digest that names this state.

Every folder above an entry is an entry itself. Manifests share their equal folders (`tree.py`). So
the time to make one from another, or to compare two, depends only on their differences, and a
folder that was only renamed is recognised. `replace` also remembers what it changed, so a
comparison with the manifest that it changed looks at nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

import msgspec

from monarch_sync.content.digest import DIGEST_NAME, digest_bytes
from monarch_sync.errors import BadManifest
from monarch_sync.tree.entry import (
    TOO_DEEP,
    Entry,
    Row,
    folders_above,
    from_wire,
    is_too_deep,
    target_fault,
    to_wire,
)
from monarch_sync.tree.tree import EMPTY, Child, TreeNode, differing, join, located, paths_of, split
from monarch_sync.tree.tree_making import Editor, build


class _Encoded(msgspec.Struct, array_like=True):
    digest_name: str
    rows: list[Row]


class _Lineage(NamedTuple):
    """Which manifest another manifest was made from, by its digest (``base``), and what may differ
    between them.

    ``touched``: paths with the entry before and the entry now; the two may be equal.
    """

    base: bytes
    touched: dict[str, tuple[Entry | None, Entry | None]]


class EntryChange(NamedTuple):
    """A path at which two manifests differ, with its entry before and now; None where a manifest
    has no entry."""

    path: str
    before: Entry | None
    now: Entry | None


class Manifest:
    """An immutable set of entries, one a path. Iterates in canonical order (by path)."""

    __slots__ = ("_changes", "_folders", "_rows", "digest", "digest_name", "lineage", "root")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._hold(build(entries))

    def _hold(self, root: TreeNode) -> None:
        self.root = root
        self._folders: dict[str, TreeNode] = {"": root}
        self._rows: list[Row] | None = None
        self._changes: tuple[bytes, list[EntryChange]] | None = None
        self.digest_name = DIGEST_NAME
        counted = root.digest + root.num_entries.to_bytes(8, "big")
        self.digest = digest_bytes(DIGEST_NAME.encode() + counted)
        self.lineage: _Lineage | None = None

    @property
    def num_files(self) -> int:
        """How many of the entries are files."""
        return self.root.num_files

    def __len__(self) -> int:
        return self.root.num_entries

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.get(path) is not None

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(_entries(self.root, ""), key=attrgetter("path")))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Manifest):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Manifest {self.digest.hex()[:8]}, {len(self)} entries>"

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        child = self._child(path)
        if child is None or child.entry is None:
            return None
        entry = child.entry
        return entry if entry.path == path else located(entry, path)

    def _child(self, path: str) -> Child | None:
        folder, _, name = path.rpartition("/")
        node = self._folders.get(folder) or self.folder(folder)
        return node.children.get(name if folder else path)

    def folder(self, path: str) -> TreeNode:
        """Return the content of a folder ("" = the root); empty if there is no such folder."""
        node = self._folders.get(path)
        if node is None:
            above, name = split(path)
            child = self.folder(above).children.get(name)
            node = self._folders[path] = (child and child.node) or EMPTY
        return node

    def path_of(self, digest: bytes) -> str | None:
        """Return the path of a file that has this content; None if there is none."""
        return self.paths_of([digest]).get(digest)

    def paths_of(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """Return a path for each of these contents; contents that no file has are left out."""
        return paths_of(self.root, digests)

    def below(self, path: str) -> list[str]:
        """Return the paths inside a folder, at any depth, in canonical order."""
        return sorted(
            join(folder, name)
            for folder, node in self.folder(path).walk(path)
            for name, child in node.children.items()
            if child.entry is not None
        )

    def files_below(self, path: str) -> Iterator[str]:
        """Yield the files inside a folder, at any depth; for a caller that needs only the first
        few."""
        children = self.folder(path).children
        # A folder's name sorts as its content does.
        names = [name if child.node is None else f"{name}/" for name, child in children.items()]
        for name in sorted(names):
            if name.endswith("/"):
                yield from self.files_below(join(path, name[:-1]))
            elif (entry := children[name].entry) is not None and entry.is_file:
                yield join(path, name)

    def changes(self, base: Manifest) -> list[EntryChange]:
        """Return the differences between this manifest and `base`, in canonical order. The result
        is cached for the next call."""
        if self._changes is None or self._changes[0] != base.digest:
            self._changes = base.digest, self._compare(base)
        return self._changes[1]

    def _compare(self, base: Manifest) -> list[EntryChange]:
        if not len(base):
            return [EntryChange(entry.path, None, entry) for entry in self]
        if self.lineage and self.lineage.base == base.digest:
            changes = [EntryChange(path, *pair) for path, pair in self.lineage.touched.items()]
        else:
            changes = [
                EntryChange(path, _entry_at(path, old_child), _entry_at(path, new_child))
                for path, old_child, new_child in differing(base.root, self.root)
            ]
        changes.sort(key=attrgetter("path"))
        return [change for change in changes if not _is_same(change.before, change.now)]

    def changed_paths(self, base: Manifest) -> set[str]:
        """Return the paths at which this manifest and `base` differ."""
        return {change.path for change in self.changes(base)}

    def replace(
        self,
        changed: Iterable[Entry] = (),
        removed: Iterable[str] = (),
        moves: Iterable[tuple[str, str]] = (),
    ) -> Manifest:
        """Return this manifest after three steps: some folders are renamed, as (old, new), then
        paths are removed, then entries are added or replaced. Raises ``BadManifest`` for a folder
        that cannot be renamed."""
        editor = Editor(self.root)
        put = editor.put
        has_moved = False
        for old, new in moves:
            has_moved = True
            if not editor.move(old, new):
                raise BadManifest(old, f"cannot become {new!r}: one of them is not as it should be")
        touched: dict[str, tuple[Entry | None, Entry | None]] = {}
        for path, entry in (*((path, None) for path in removed), *((e.path, e) for e in changed)):
            old_entry = put(path, entry)
            if path in touched:
                old_entry = touched[path][0]  # it was put twice
            elif old_entry is not None and old_entry.path != path:
                old_entry = located(old_entry, path)
            touched[path] = old_entry, entry
        manifest = Manifest.__new__(Manifest)
        manifest._hold(editor.finish())
        if not has_moved:
            manifest.lineage = _Lineage(self.digest, touched)
        return manifest

    def check(self, base: Manifest | None = None) -> None:
        """Raise `BadManifest` if the folder of an entry has no entry, or an entry that is no
        folder. Raise it also if a link of a moved folder leads outside from its new path.

        ``base``: a manifest that was checked already; only paths that differ from it are looked at.
        """
        for path, child in self._unsure(base):
            if child is not None:
                _check(path, child)

    def _unsure(self, base: Manifest | None) -> Iterator[tuple[str, Child | None]]:
        """Yield the paths that ``check`` must look at, each with the ``Child`` at it; None if
        nothing is at the path. ``base`` is as in ``check``.
        """
        if base is None or not len(base):
            for folder, node in self.root.walk():
                is_deep = is_too_deep(f"{folder}/x")
                for name, child in node.children.items():
                    entry = child.entry
                    # Nearly all are files; that they are in a folder is all that matters.
                    if is_deep or child.node is not None or entry is None or not entry.is_file:
                        yield join(folder, name), child
        elif self.lineage and self.lineage.base == base.digest:
            paths: set[str] = set()
            for path, (old_entry, new_entry) in self.lineage.touched.items():
                # A file in place of a file changes nothing that `check` looks at.
                are_files = old_entry and new_entry and old_entry.is_file and new_entry.is_file
                if not are_files:
                    paths.update((path, *folders_above(path)))
            yield from ((path, self._child(path)) for path in paths)
        else:
            yield from ((path, child) for path, _, child in differing(base.root, self.root))

    def check_at(self, path: str, *, with_content: bool) -> None:
        """Check the folder at a path and all folders above it as `check` does; with
        ``with_content`` also all that is in it."""
        at = ""
        for name in path.split("/"):
            child = self.folder(at).children.get(name)
            at = join(at, name)
            if child is not None:
                _check(at, child)
        if not with_content:
            return
        for folder, node in self.folder(path).walk(path):
            for name, child in node.children.items():
                _check(join(folder, name), child)

    def encode(self) -> bytes:
        """Return the manifest as bytes, which `decode` reads."""
        return msgspec.msgpack.encode(_Encoded(self.digest_name, self.rows()))

    def rows(self) -> list[Row]:
        """Return all entries in canonical order, as they are sent. Cached for the next host."""
        if self._rows is None:
            self._rows = [entry.to_row() for entry in self]
        return self._rows

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Return the manifest in ``raw``. Raises ``BadManifest`` if it cannot be decoded, if an
        entry breaks a rule, or if its digests were made by another algorithm than ours."""
        try:
            encoded = msgspec.msgpack.decode(raw, type=_Encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadManifest("", f"cannot be read: {error}") from error
        return cls.from_rows(encoded.rows, encoded.digest_name)

    @classmethod
    def from_rows(cls, rows: list[Row], digest_name: str = DIGEST_NAME) -> Manifest:
        """Return the manifest of rows that came from outside. Raises `BadManifest`, which names the
        bad entry."""
        if digest_name != DIGEST_NAME:
            raise BadManifest("", f"uses the digest {digest_name!r}; this side knows {DIGEST_NAME}")
        manifest = cls(Entry.from_row(row) for row in rows)
        if len(manifest) != len(rows):
            twice, _ = Counter(row[0] for row in rows).most_common(1)[0]
            raise BadManifest(from_wire(twice), "appears twice")
        manifest.check()
        return manifest


def _check(path: str, child: Child) -> None:
    entry, node = child.entry, child.node
    if node is not None and (entry is None or not entry.is_dir):
        fault = "has no entry" if entry is None else f"is a {entry.kind.value}"
        inside = next(_entries(node, path)).path
        raise BadManifest(inside, f"lies in {path!r}, which {fault}")
    if entry is not None and entry.is_link:
        fault = target_fault(path, entry.target)
        if fault:
            raise BadManifest(path, fault)
    if is_too_deep(path):
        raise BadManifest(path, TOO_DEEP)


def _entry_at(path: str, child: Child | None) -> Entry | None:
    return None if child is None or child.entry is None else located(child.entry, path)


def _entries(root: TreeNode, above: str) -> Iterator[Entry]:
    for folder, node in root.walk(above):
        for name, child in node.children.items():
            if child.entry is not None:
                yield located(child.entry, join(folder, name))


def _is_same(old: Entry | None, new: Entry | None) -> bool:
    """Return whether two entries differ in nothing but their path."""
    if old is None or new is None:
        return old is new
    return (
        old.kind is new.kind
        and old.mode == new.mode
        and old.digest == new.digest
        and old.size == new.size
        and old.target == new.target
    )


def encode_paths(paths: Iterable[str]) -> list[bytes]:
    return [to_wire(path) for path in paths]


def decode_paths(raw: Iterable[bytes]) -> list[str]:
    return [from_wire(path) for path in raw]


def encode_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(to_wire(old), to_wire(new)) for old, new in pairs]


def decode_pairs(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(from_wire(old), from_wire(new)) for old, new in raw]
