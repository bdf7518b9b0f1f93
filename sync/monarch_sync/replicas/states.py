"""States: the state that a stage leads to, as a manifest; recent states are kept.

So if the author returns to a branch that it has just left, nothing has to be computed.
"""

from __future__ import annotations

from collections import OrderedDict

from monarch_sync.errors import BadManifest
from monarch_sync.messages import StageRequest
from monarch_sync.tree.entry import Entry, path_fault
from monarch_sync.tree.manifest import Manifest, decode_pairs, decode_paths

_MAX_STATES = 8


class States:
    """The recent states of one replica, by digest. Manifests share equal folders, so they take
    little memory."""

    def __init__(self) -> None:
        self._recent: OrderedDict[bytes, Manifest] = OrderedDict()

    def note(self, manifest: Manifest) -> None:
        """Remember a state that the replica has now, and drop the oldest beyond ``_MAX_STATES``."""
        self._recent[manifest.digest] = manifest
        self._recent.move_to_end(manifest.digest)
        if len(self._recent) > _MAX_STATES:
            self._recent.popitem(last=False)

    def find(self, stage: StageRequest) -> Manifest | None:
        """Return the state that a stage leads to, if it is one of the recent states; else None. It
        is None also for a stage that moves folders, as its state must be computed.
        """
        return self._recent.get(stage.digest) if not stage.moves else None


def manifest_of(stage: StageRequest, present: Manifest) -> Manifest:
    """Return the replica's state after a stage: its ``present`` state with the stage's changes.

    Raises ``BadManifest`` if an entry or a path is invalid, or the result has another digest than
    the stage announced.
    """
    if not stage.base:
        manifest = Manifest.from_rows(stage.changed, stage.digest_name)
    else:
        changed = [Entry.from_row(row) for row in stage.changed]
        removed = decode_paths(stage.removed)
        moves = decode_pairs(stage.moves)
        for path in (*removed, *(path for pair in moves for path in pair)):
            if fault := path_fault(path):
                raise BadManifest(path, fault)
        moved = present.replace(moves=moves) if moves else present
        manifest = moved.replace(changed, removed)
        manifest.check(moved)
        for old_path, path in moves:
            # A link in a folder that is now less deep may lead outside.
            manifest.check_at(path, with_content=old_path.count("/") != path.count("/"))
    if manifest.digest != stage.digest:
        raise BadManifest("", "does not have the digest that it was announced with")
    return manifest
