"""How trees are made: from entries, or by changing a tree that other manifests share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from monarch_sync.content.digest import DIGEST_BYTES, digest_bytes
from monarch_sync.tree.entry import Entry, EntryKind, to_wire
from monarch_sync.tree.tree import Child, TreeNode, located, split

_NO_FOLD = b""
_FEW = 8  # so few changes are worked into the sorted folds of a folder
_FILE = EntryKind.FILE
_NAMES = {kind: kind.value for kind in EntryKind}


def _fold(name: str, entry: Entry | None, node: TreeNode | None) -> bytes:
    if entry is None:
        data = to_wire(name)
    else:
        # Names contain no NUL, so no two entries have the same data.
        kind = _NAMES[entry.kind]
        data = to_wire(f"{name}\0{kind}\0{entry.mode}\0{entry.size}\0{entry.target}\0")
        data += entry.digest
    if node is not None:
        data += b"\0in:%b" % node.digest
    return digest_bytes(data)


def build(entries: Iterable[Entry]) -> TreeNode:
    """Make a tree from entries; this is faster than adding them to a tree one by one. Of several
    entries with one path, the last one counts."""
    folders: dict[str, dict[str, Entry | None]] = {"": {}}
    for entry in entries:
        folder, name = split(entry.path)
        names = folders.get(folder)
        if names is None:
            names = _add_folder(folders, folder)
        names[name] = entry
    top = folders.pop("")
    inside: dict[str, dict[str, TreeNode]] = {"": {}}
    # The deepest first: a folder is counted after the folders in it.
    for folder in sorted(folders, key=_depth, reverse=True):
        above, name = split(folder)
        node = _node_of(folders[folder], inside.pop(folder, {}))
        inside.setdefault(above, {})[name] = node
    return _node_of(top, inside[""])


def _add_folder(
    folders: dict[str, dict[str, Entry | None]], folder: str
) -> dict[str, Entry | None]:
    """Add to ``folders`` an empty folder, and those folders above it that are missing. Return the
    names in the new folder: an empty dict, which the caller fills.
    """
    names = folders[folder] = {}
    while folder:
        folder, name = split(folder)
        above = folders.get(folder)
        if above is not None:
            above.setdefault(name, None)
            break
        folders[folder] = {name: None}
    return names


def _node_of(entries: dict[str, Entry | None], folders: dict[str, TreeNode]) -> TreeNode:
    node = TreeNode()
    children, folds, num_files = node.children, [], 0
    for name, entry in entries.items():
        inner = folders.get(name)
        fold = _fold(name, entry, inner)
        children[name] = Child(entry, inner, fold)
        folds.append(fold)
        if entry is not None and entry.kind is _FILE:
            num_files += 1
    node.folds = b"".join(sorted(folds))
    node.digest = digest_bytes(node.folds)
    node.num_entries = len(entries) - sum(entry is None for entry in entries.values())
    node.num_files = num_files
    for inner in folders.values():
        node.num_entries += inner.num_entries
        node.num_files += inner.num_files
        node.num_folders += inner.num_folders + 1
    return node


def _depth(path: str) -> int:
    return path.count("/")


class Editor:
    """Makes a new tree from an existing one, which stays as it is; unchanged parts are shared."""

    def __init__(self, root: TreeNode) -> None:
        self._nodes: dict[str, TreeNode] = {"": root.copy()}
        self._touched: dict[str, dict[str, Child | None]] = {"": {}}

    def put(self, path: str, entry: Entry | None) -> Entry | None:
        """Set the entry at a path, or remove it with None; return the old entry. Entries below the
        path are not changed."""
        folder, name = split(path)
        node = self._nodes.get(folder) or self._open(folder)
        old_child = node.children.get(name)
        self._touched[folder].setdefault(name, old_child)
        if old_child is None:
            node.children[name] = Child(entry, None, _NO_FOLD)
            return None
        node.children[name] = Child(entry, old_child.node, _NO_FOLD)
        return old_child.entry

    def move(self, old: str, new: str) -> bool:
        """Rename a folder; return False if there is none, or if ``new`` exists. Call it before any
        `put`."""
        folder, name = split(old)
        node = self._open(folder)
        child = node.children.get(name)
        if child is None or child.entry is None or not child.entry.is_dir:
            return False
        self._touched[folder].setdefault(name, child)
        del node.children[name]
        folder, name = split(new)
        node = self._open(folder)
        old_child = node.children.get(name)
        self._touched[folder].setdefault(name, old_child)
        node.children[name] = Child(located(child.entry, new), child.node, _NO_FOLD)
        return old_child is None

    def _open(self, folder: str) -> TreeNode:
        """Return the node of a folder as a copy, which may be changed. The first call for a folder
        makes the copy; later calls return it again.
        """
        missing = []
        at = folder
        while at not in self._nodes:
            missing.append(at)
            at = split(at)[0]
        node = self._nodes[at]
        for path in reversed(missing):
            above, name = split(path)
            old_child = node.children.get(name)
            self._touched[above].setdefault(name, old_child)
            old = old_child or Child(None, None, _NO_FOLD)
            inner = old.node.copy() if old.node else TreeNode()
            node.children[name] = Child(old.entry, inner, _NO_FOLD)
            self._nodes[path], self._touched[path] = inner, {}
            node = inner
        return node

    def finish(self) -> TreeNode:
        """Compute the digests of the changed folders, and return the new tree."""
        # The deepest first: a folder is counted after the folders in it.
        for folder in sorted(self._nodes, key=_depth, reverse=True):
            if folder:
                self._count(folder)
        self._count("")
        return self._nodes[""]

    def _count(self, folder: str) -> None:
        """Bring a folder's counts and digests up to date after some of its children were changed.
        Children that have become empty and have no entry are removed.
        """
        node, touched = self._nodes[folder], self._touched[folder]
        old_folds, new_folds = [], []
        for name, old_child in touched.items():
            if old_child is not None:
                old_folds.append(old_child.fold)
                _add_counts(node, old_child, -1)
            child = node.children.get(name)
            if child is None:
                continue
            inner = child.node if child.node is not None and child.node.children else None
            if child.entry is None and inner is None:
                del node.children[name]
                continue
            fold = _fold(name, child.entry, inner)
            child = node.children[name] = Child(child.entry, inner, fold)
            new_folds.append(fold)
            _add_counts(node, child, 1)
        if len(touched) <= _FEW:
            node.folds = _with(node.folds, old_folds, new_folds)
        else:
            node.folds = b"".join(sorted(child.fold for child in node.children.values()))
        node.digest = digest_bytes(node.folds)


def _add_counts(node: TreeNode, child: Child, sign: int) -> None:
    """Add a child to the numbers of its folder's ``node``: the child itself, and the entries in it.
    With ``sign`` -1, subtract it.
    """
    if child.entry is not None:
        node.num_entries += sign
        node.num_files += sign * (child.entry.kind is _FILE)
    if child.node is not None:
        node.num_entries += sign * child.node.num_entries
        node.num_files += sign * child.node.num_files
        node.num_folders += sign * (child.node.num_folders + 1)


def _with(folds: bytes, removed: Iterable[bytes], added: Iterable[bytes]) -> bytes:
    """Return ``folds`` (sorted digests, joined) without those in ``removed``, and with those in
    ``added``."""
    result = bytearray(folds)
    for fold in removed:
        at = _offset_of(result, fold)
        del result[at : at + DIGEST_BYTES]
    for fold in added:
        at = _offset_of(result, fold)
        result[at:at] = fold
    return bytes(result)


def _offset_of(folds: bytearray, fold: bytes) -> int:
    """Return the offset in bytes of ``fold`` among sorted folds; if it is not one of them, the
    offset at which it would be inserted."""
    size = DIGEST_BYTES
    indices = range(len(folds) // size)
    return size * bisect_left(indices, fold, key=lambda i: bytes(folds[i * size : i * size + size]))
