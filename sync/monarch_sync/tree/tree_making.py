"""How trees are made: from entries, or from a tree that other manifests share."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_sync.content.digest import DIGEST_BYTES, digest_bytes
from monarch_sync.tree.entry import Entry, EntryKind, to_wire
from monarch_sync.tree.tree import Child, TreeNode, located, split

_NO_FOLD = b""
_FEW = 8  # changes to a folder that are worked into its known state
_FILE = EntryKind.FILE
_NAMES = {kind: kind.value for kind in EntryKind}


def _fold(name: str, entry: Entry | None, node: TreeNode | None) -> bytes:
    if entry is None:
        told = to_wire(name)
    else:
        # Names have no NUL, so no two entries are told alike.
        kind = _NAMES[entry.kind]
        told = to_wire(f"{name}\0{kind}\0{entry.mode}\0{entry.size}\0{entry.target}\0")
        told += entry.digest
    if node is not None:
        told += b"\0in:%b" % node.digest
    return digest_bytes(told)


def build(entries: Iterable[Entry]) -> TreeNode:
    """Make a tree from entries. It shares nothing, and is faster to make than to edit a tree. Of
    several entries with one path, the last one counts."""
    folders: dict[str, dict[str, Entry | None]] = {"": {}}
    for entry in entries:
        folder, name = split(entry.path)
        names = folders.get(folder)
        if names is None:
            names = _add_folder(folders, folder)
        names[name] = entry
    top = folders.pop("")
    inside: dict[str, dict[str, TreeNode]] = {"": {}}
    # The deepest first, so that what is in a folder is known when it is counted.
    for folder in sorted(folders, key=_depth, reverse=True):
        above, name = split(folder)
        node = _node_of(folders[folder], inside.pop(folder, {}))
        inside.setdefault(above, {})[name] = node
    return _node_of(top, inside[""])


def _add_folder(
    folders: dict[str, dict[str, Entry | None]], folder: str
) -> dict[str, Entry | None]:
    """Add a folder, and those above it that are new, without entries; return the new folder's
    names."""
    room = folders[folder] = {}
    while folder:
        folder, name = split(folder)
        above = folders.get(folder)
        if above is not None:
            above.setdefault(name, None)
            break
        folders[folder] = {name: None}
    return room


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
        """Set the entry at a path, or remove it with None; return the entry that was there. All
        below the path stays."""
        folder, name = split(path)
        node = self._nodes.get(folder) or self._open(folder)
        before = node.children.get(name)
        self._touched[folder].setdefault(name, before)
        if before is None:
            node.children[name] = Child(entry, None, _NO_FOLD)
            return None
        node.children[name] = Child(entry, before.node, _NO_FOLD)
        return before.entry

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
        before = node.children.get(name)
        self._touched[folder].setdefault(name, before)
        node.children[name] = Child(located(child.entry, new), child.node, _NO_FOLD)
        return before is None

    def _open(self, folder: str) -> TreeNode:
        """Return a folder's node as a copy that may be changed."""
        missing = []
        at = folder
        while at not in self._nodes:
            missing.append(at)
            at = split(at)[0]
        node = self._nodes[at]
        for path in reversed(missing):
            above, name = split(path)
            before = node.children.get(name)
            self._touched[above].setdefault(name, before)
            inner = before.node.copy() if before is not None and before.node else TreeNode()
            node.children[name] = Child(before.entry if before else None, inner, _NO_FOLD)
            self._nodes[path], self._touched[path] = inner, {}
            node = inner
        return node

    def finish(self) -> TreeNode:
        """Compute the digests of the changed folders, and return the new tree."""
        # The deepest first, so that what is in a folder is known when it is counted.
        for folder in sorted(self._nodes, key=_depth, reverse=True):
            if folder:
                self._count(folder)
        self._count("")
        return self._nodes[""]

    def _count(self, folder: str) -> None:
        node, touched = self._nodes[folder], self._touched[folder]
        num_entries, gone, came = node.num_entries, [], []
        num_files, num_folders = node.num_files, node.num_folders
        children = node.children
        for name, before in touched.items():
            if before is not None:
                entry, inner = before.entry, before.node
                gone.append(before.fold)
                if entry is not None:
                    num_entries -= 1
                    num_files -= entry.kind is _FILE
                if inner is not None:
                    num_entries -= inner.num_entries
                    num_files -= inner.num_files
                    num_folders -= inner.num_folders + 1
            child = children.get(name)
            if child is None:
                continue
            entry, inner = child.entry, child.node
            if inner is not None and not inner.children:
                inner = None
            if entry is None and inner is None:
                del children[name]
                continue
            fold = _fold(name, entry, inner)
            children[name] = Child(entry, inner, fold)
            came.append(fold)
            if entry is not None:
                num_entries += 1
                num_files += entry.kind is _FILE
            if inner is not None:
                num_entries += inner.num_entries
                num_files += inner.num_files
                num_folders += inner.num_folders + 1
        if len(touched) <= _FEW:
            node.folds = _with(node.folds, gone, came)
        else:
            node.folds = b"".join(sorted(child.fold for child in children.values()))
        node.digest, node.num_entries = digest_bytes(node.folds), num_entries
        node.num_files, node.num_folders = num_files, num_folders


def _with(folds: bytes, gone: Iterable[bytes], came: Iterable[bytes]) -> bytes:
    """Return the sorted folds without those in ``gone``, and with those in ``came``."""
    made = bytearray(folds)
    for fold in gone:
        at = _place(made, fold)
        del made[at : at + DIGEST_BYTES]
    for fold in came:
        at = _place(made, fold)
        made[at:at] = fold
    return bytes(made)


def _place(folds: bytearray, fold: bytes) -> int:
    """Return the offset of a fold among sorted folds, or the offset at which it belongs."""
    low, high = 0, len(folds) // DIGEST_BYTES
    while low < high:
        middle = (low + high) // 2
        if folds[middle * DIGEST_BYTES : (middle + 1) * DIGEST_BYTES] < fold:
            low = middle + 1
        else:
            high = middle
    return low * DIGEST_BYTES
