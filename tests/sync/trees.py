"""Trees, manifests and replicas for the tests of `monarch_sync`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hypothesis import strategies as st

from monarch_sync import Manifest, Replica
from monarch_sync.content.digest import digest_bytes
from monarch_sync.messages import Blob, Commit, Message, Staged, StageRequest
from monarch_sync.tree.entry import Entry, EntryKind

Tree = dict[str, "bytes | str | None"]  # content of a file, target of a link, None for a folder


def manifest_of(tree: Tree, mode: int = 0o644) -> Manifest:
    """The manifest of a tree that is written down in a test."""
    entries = [Entry(path, EntryKind.DIR, 0o755) for path in _folders(tree)]
    for path, what in tree.items():
        if isinstance(what, bytes):
            entries.append(Entry(path, EntryKind.FILE, mode, len(what), digest_bytes(what)))
        elif isinstance(what, str):
            entries.append(Entry(path, EntryKind.LINK, target=what))
    return Manifest(entries)


def _folders(tree: Tree) -> set[str]:
    folders = {path for path, what in tree.items() if what is None}
    for path in tree:
        while path := path.rpartition("/")[0]:
            folders.add(path)
    return folders


def read_tree(root: Path) -> Tree:
    """Returns the entries below a folder."""
    tree: Tree = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                tree[key] = os.readlink(path)
            else:
                tree[key] = None if path.is_dir() else path.read_bytes()
    return tree


def whole(tree: Tree) -> Tree:
    """A tree with the folders that it implies."""
    return {**dict.fromkeys(_folders(tree)), **tree}


def stage_message(generation: int, manifest: Manifest, contents: list[bytes]) -> StageRequest:
    blobs = [Blob(digest_bytes(content), len(content)) for content in contents]
    return StageRequest(
        generation, "me@laptop", manifest.digest_name, manifest.digest, b"",
        manifest.rows(), [], blobs,
    )  # fmt: skip


def push_tree(replica: Replica, generation: int, tree: Tree, mode: int = 0o644) -> Message:
    """Stage and commit a tree, all its content sent along."""
    contents = [what for what in tree.values() if isinstance(what, bytes)]
    reply = replica.handle(stage_message(generation, manifest_of(tree, mode), contents), contents)
    if isinstance(reply, Staged):
        reply = replica.handle(Commit(generation))
        replica.settle()
    return reply


def plant(root: Path, tree: Tree) -> None:
    """Make a folder hold exactly this tree."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, what in whole(tree).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if what is None:
            (root / path).mkdir(exist_ok=True)
        elif isinstance(what, str):
            (root / path).symlink_to(what)
        else:
            (root / path).write_bytes(what)


# Small, so that trees of a pair have much in common.
_names = st.sampled_from(["a", "b", "c.py"])
_contents = st.sampled_from([b"", b"1", b"2", b"three"])
_nodes = st.recursive(
    _contents | st.sampled_from(["a", "b"]) | st.none(),
    lambda inner: st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)
trees = st.dictionaries(_names, _nodes, max_size=3).map(lambda tree: _flatten(tree))


def _flatten(nested: dict[str, object], above: str = "") -> Tree:
    flat: Tree = {}
    for name, what in nested.items():
        if isinstance(what, dict):
            flat[above + name] = None
            flat.update(_flatten(what, f"{above}{name}/"))
        else:
            flat[above + name] = what  # type: ignore[assignment]
    return flat
