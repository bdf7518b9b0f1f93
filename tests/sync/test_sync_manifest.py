"""Manifests: what they hold, how they travel, what they refuse; and what turns one into another."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_sync import BadManifest, Manifest, MovedUnderfoot, VersionMismatch, WorkspaceMissing
from monarch_sync.content.digest import digest_bytes
from monarch_sync.errors import BadMessage, PushRefused, ReplicaBusy, SyncFailed, WatchEnded
from monarch_sync.messages import Commit, Need, Refused, decode, encode
from monarch_sync.tree.diff import SyncPlan, diff
from monarch_sync.tree.entry import Entry, EntryKind, target_fault
from tests.sync.trees import Tree, manifest_of

names = st.sampled_from(["a", "b", "ä", "\udcff", "z.py"])
leaves = st.sampled_from([b"", b"1", b"2"]) | st.sampled_from(["a", "b"]) | st.none()
nodes = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=12)


def flatten(nested: dict[str, object], above: str = "") -> Tree:
    flat: Tree = {}
    for name, what in nested.items():
        if isinstance(what, dict):
            flat.update({above + name: None, **flatten(what, f"{above}{name}/")})
        else:
            flat[above + name] = what  # type: ignore[assignment]
    return flat


modes = st.sampled_from([0o644, 0o755])
manifests = st.builds(
    lambda tree, mode: manifest_of(flatten(tree), mode),
    st.dictionaries(names, nodes, max_size=4),
    modes,
)


def move(manifest: Manifest, before: str, after: str) -> Manifest:
    inside = [before, *manifest.below(before)]
    entries = [manifest.get(path) for path in inside]
    moved = [
        msgspec.structs.replace(entry, path=after + entry.path[len(before) :])
        for entry in entries
        if entry is not None
    ]
    return manifest.replace(moved, inside)


def apply(plan: SyncPlan, old: Manifest) -> Manifest:
    """Carry a plan out on a manifest; contents may only come from the plan's own sources."""
    for target, source in plan.moved.items():
        entry = next(entry for entry in plan.files if entry.path == target)
        before = old.get(source)
        assert before is not None
        assert before.digest == entry.digest
    left = old
    for before, after in plan.folders_moved:
        left = move(left, before, after)
    left = left.replace(removed=[entry.path for entry in plan.removes])
    for entry in (*plan.folders, *plan.files, *plan.links, *plan.modes):
        left = left.replace([entry])
        left.check(left)
    return left


@given(old=manifests, new=manifests)
@settings(deadline=None)
def test_a_plan_turns_one_state_into_the_other(old: Manifest, new: Manifest) -> None:
    plan = diff(old, new)
    assert apply(plan, old) == new
    assert plan.is_empty == (old == new)
    entry_by_entry = diff(old, new, folders_moved=())
    assert apply(entry_by_entry, old) == new
    assert entry_by_entry.touched() == sorted(new.changed_paths(old))


@given(manifests)
@settings(deadline=None)
def test_a_manifest_survives_the_wire(manifest: Manifest) -> None:
    again = Manifest.decode(manifest.encode())
    assert again == manifest
    assert again.digest == manifest.digest
    assert list(again) == sorted(manifest, key=lambda entry: entry.path)


@given(old=manifests, new=manifests)
@settings(deadline=None)
def test_steps_and_leaps_give_the_same_digest(old: Manifest, new: Manifest) -> None:
    gone = [entry.path for entry in old if entry.path not in new]
    stepped = old.replace(new, gone)
    assert stepped == new
    assert stepped.digest == new.digest
    stepped.check(old)
    assert stepped.changed_paths(old) == new.changed_paths(old)
    assert (old.digest == new.digest) == (old == new)


def a_file(path: str) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))


odd_paths = st.sampled_from(["a", "a/b", "a/b/c", "b/c", "/a", "//", "a//b", "", "é", "d/" * 600])
odd_entries = st.builds(
    lambda path, is_file: a_file(path) if is_file else Entry(path, EntryKind.DIR, 0o755),
    odd_paths, st.booleans(),
)  # fmt: skip


@given(entries=st.lists(odd_entries))
@settings(deadline=None)
def test_made_at_once_or_bit_by_bit_it_is_the_same(entries: list[Entry]) -> None:
    """Sound or not, in any order."""
    made, stepped = Manifest(entries), Manifest()
    for entry in entries:
        stepped = stepped.replace([entry])
    assert (made, len(made), made.num_files) == (stepped, len(stepped), stepped.num_files)
    assert list(made) == list(stepped)
    assert made.folder("a").num_folders == stepped.folder("a").num_folders
    assert made.root.num_folders == stepped.root.num_folders


@pytest.mark.parametrize(
    ("entries", "path", "reason"),
    [
        ([a_file("/etc/passwd")], "/etc/passwd", "absolute"),
        ([a_file("a/../b")], "a/../b", r"`\.\.`"),
        ([a_file("a//b")], "a//b", "empty part"),
        ([a_file("")], "", "empty part"),
        ([a_file("a\0b")], "a\0b", "NUL"),
        ([a_file(".monarch/current")], ".monarch/current", "replica's own"),
        ([a_file("a"), a_file("a/b")], "a/b", "which is a file"),
        ([a_file("a/b")], "a/b", "no entry"),
        ([Entry("a", EntryKind.LINK, target="/etc")], "a", "absolute"),
        ([Entry("a", EntryKind.LINK, target="../b")], "a", "leads out"),
        ([Entry("a", EntryKind.LINK, target="b/../../c")], "a", "after a name"),
        # One that gets this far would be found out in the middle of a commit.
        ([a_file("é" * 128)], "é" * 128, "too long"),
        ([Entry("n" * 256, EntryKind.DIR)], "n" * 256, "too long"),
        ([Entry("a", EntryKind.LINK, target="b/" * 3000)], "a", "too long"),
        ([Entry("a", EntryKind.LINK, target="n" * 256)], "a", "too long"),
        ([Entry("a", EntryKind.FILE, 0o4755, 1, digest_bytes(b"1"))], "a", "permission bits"),
        ([Entry("a", EntryKind.FILE, 0o644, 1, b"short")], "a", "digest"),
        ([Entry("a", EntryKind.DIR, 0o755, 0, digest_bytes(b""))], "a", "no file"),
    ],
)
def test_a_bad_entry_is_named(entries: list[Entry], path: str, reason: str) -> None:
    with pytest.raises(BadManifest, match=reason) as caught:
        Manifest.decode(Manifest(entries).encode())
    assert caught.value.path == path


def test_a_path_may_appear_once() -> None:
    row = a_file("a").to_row()
    with pytest.raises(BadManifest, match="twice"):
        Manifest.from_rows([row, row])


def test_another_digest_is_refused() -> None:
    with pytest.raises(BadManifest, match="blake3"):
        Manifest.from_rows([], "blake3")


def test_what_is_no_manifest_is_refused() -> None:
    with pytest.raises(BadManifest, match="cannot be read"):
        Manifest.decode(b"\xc1")


def test_a_change_that_orphans_a_file_is_found() -> None:
    base = manifest_of({"d/f": b"1"})
    for changed in (base.replace(removed=["d"]), base.replace([a_file("d")])):
        with pytest.raises(BadManifest) as caught:
            changed.check(base)
        assert caught.value.path == "d/f"


@pytest.mark.parametrize(
    ("path", "target", "is_fine"),
    [
        ("l", "a", True), ("d/l", "../a", True), ("d/l", "../../a", False), ("d/l", "./x/y", True),
        ("d/e/l", "../../a/b", True), ("d/l", "a/../b", False), ("l", "", False),
    ],
)  # fmt: skip
def test_a_link_stays_inside(path: str, target: str, is_fine: bool) -> None:
    assert (target_fault(path, target) == "") is is_fine


@pytest.mark.parametrize("message", [Commit(3), Need([b"1"], whole=True), Refused("c", "r", "p")])
def test_a_message_survives_the_wire(message: Commit | Need | Refused) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\x01\xc1", b"\x01\x93\x63\x01\x01"])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(raw)


def test_another_version_says_who_is_older() -> None:
    with pytest.raises(VersionMismatch, match="Upgrade monarch-loop on this side"):
        decode(b"\xc8" + encode(Commit(1))[1:])
    with pytest.raises(VersionMismatch, match="Upgrade monarch-loop on the peer"):
        decode(b"\x00" + encode(Commit(1))[1:])


@pytest.mark.parametrize(
    "error",
    [
        WorkspaceMissing("/w"), BadManifest("a", "is odd"), BadMessage("no"), VersionMismatch(1, 2),
        MovedUnderfoot("a"), PushRefused("c", "r", "p"), ReplicaBusy("/s"),
        WatchEnded("/w", "gone"), SyncFailed(("one", "two")),
    ],
)  # fmt: skip
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


def test_rows_are_checked_by_type() -> None:
    with pytest.raises(BadManifest, match="cannot be read"):
        Manifest.decode(msgspec.msgpack.encode(("xxh3_128", [("text", 1)])))


def with_content(path: str, content: bytes) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, len(content), digest_bytes(content))


def test_what_a_manifest_remembers_of_its_making_is_the_difference() -> None:
    """Also where a path is named twice, or is put back as it was."""
    d, x, y = Entry("d", EntryKind.DIR, 0o755), with_content("d/x", b"1"), with_content("d/y", b"2")
    base = Manifest([d, x, y])
    for changed, removed in [
        ([with_content("d/x", b"3")], []),
        ([with_content("d/x", b"3"), x], []),
        ([with_content("d/x", b"3")], ["d/x", "d/x"]),
        ([x], ["d/x", "d/y", "nowhere"]),
        ([with_content("d", b"4")], ["d/x", "d/y"]),
        ([], ["d/y", "d/x", "d"]),
    ]:
        made = base.replace(changed, removed)
        assert made.lineage is not None
        assert made.changes(base) == Manifest(made).changes(base)
        made.check(base)


def test_a_file_in_the_place_of_a_folder_that_is_not_empty_is_unsound() -> None:
    base = Manifest([Entry("d", EntryKind.DIR, 0o755), with_content("d/x", b"1")])
    for changed, removed in [
        ([with_content("d", b"4")], []),
        ([], ["d"]),
        ([with_content("e/x", b"1")], []),
    ]:
        with pytest.raises(BadManifest):
            base.replace(changed, removed).check(base)
