"""Tree: the folders behind a manifest. Manifests share the folders that they have in common.

A folder stores a digest of all its content, at any depth, which does not depend on the folder's own
name. So equal folders are recognised without a look inside, renaming a folder computes nothing, and
a changed file changes only the folders above it. Entries carry their path; in a folder that has
moved it is the old path, so code that takes an entry out of a tree gives it its present path
(`located`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from monarch_sync.content.digest import digest_bytes
from monarch_sync.tree.entry import Entry


class Child(msgspec.Struct, frozen=True, gc=False):
    """One name in a folder. ``node`` is the content of a folder that is not empty; None for
    anything else.

    A name that has a ``node`` must have the ``entry`` of a folder; otherwise the manifest is
    invalid. ``fold`` is the digest of name, entry and node.
    """

    entry: Entry | None
    node: TreeNode | None
    fold: bytes


_COUNTS = ("num_entries", "num_files", "num_folders")


class TreeNode:
    """A folder's content. It never changes once it is part of a manifest.

    ``num_entries``, ``num_files`` and ``num_folders`` count at any depth; the last counts inner
    folders that are not empty. ``folds`` are the digests of the children, sorted and joined;
    ``digest`` is the digest of ``folds``.
    """

    __slots__ = ("_by_digest", "children", "digest", "folds", *_COUNTS)

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        self.num_entries = self.num_files = self.num_folders = 0
        self.folds = b""
        self.digest = digest_bytes(b"")
        self._by_digest: dict[bytes, str] | None = None

    def copy(self) -> TreeNode:
        """Return a copy that may be changed; the inner folders are shared."""
        new = TreeNode()
        new.children = self.children.copy()
        new.folds, new.digest, new.num_entries = self.folds, self.digest, self.num_entries
        new.num_files, new.num_folders = self.num_files, self.num_folders
        return new

    @property
    def by_digest(self) -> dict[bytes, str]:
        """The names of the files right in this folder, by the digest of their content."""
        if self._by_digest is None:
            entries = ((name, child.entry) for name, child in self.children.items())
            self._by_digest = {e.digest: name for name, e in entries if e is not None and e.digest}
        return self._by_digest

    def walk(self, above: str = "") -> Iterator[tuple[str, TreeNode]]:
        """Yield this folder and every folder in it, with its path, in no order."""
        pending = [(above, self)]
        while pending:
            path, node = pending.pop()
            yield path, node
            if node.num_folders:
                pending += [(join(path, n), c.node) for n, c in node.children.items() if c.node]


EMPTY = TreeNode()


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def split(path: str) -> tuple[str, str]:
    """Return (folder, name) of a path; the folder is "" for a path without a slash. For "/name",
    which is no valid path, it is ("", "/name").
    """
    folder, _, name = path.rpartition("/")
    return (folder, name) if folder else ("", path)


def located(entry: Entry, path: str) -> Entry:
    """Return the entry with ``path`` as its path."""
    return entry if entry.path == path else msgspec.structs.replace(entry, path=path)


def differing(old: TreeNode, new: TreeNode) -> Iterator[tuple[str, Child | None, Child | None]]:
    """Yield (path, old child, new child) wherever two trees differ, folders with differences
    included. In no order, but a folder comes before its content."""
    pending = [("", old, new)]
    while pending:
        folder, old_node, new_node = pending.pop()
        before, after = old_node.children, new_node.children
        # Parts that two trees share are the same object in both, and there may be many.
        names = [name for name, child in after.items() if before.get(name) is not child]
        if len(before) > len(after) - len(names):
            names += before.keys() - after.keys()
        for name in names:
            old_child, new_child = before.get(name), after.get(name)
            if old_child and new_child and new_child.fold == old_child.fold:
                continue
            path = join(folder, name)
            yield path, old_child, new_child
            old_inner = (old_child and old_child.node) or EMPTY
            new_inner = (new_child and new_child.node) or EMPTY
            if old_inner is not new_inner:
                pending.append((path, old_inner, new_inner))


def paths_of(root: TreeNode, digests: Iterable[bytes]) -> dict[bytes, str]:
    """Return, for each of these contents that the tree has, the path of one file with the
    content."""
    wanted = set(digests)
    paths: dict[bytes, str] = {}
    if not wanted:
        return paths
    for folder, node in root.walk():
        names = node.by_digest
        if names.keys().isdisjoint(wanted):
            continue
        for digest in wanted & names.keys():
            paths[digest] = join(folder, names[digest])
        if len(paths) == len(wanted):
            break
    return paths
