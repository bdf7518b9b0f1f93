"""What travels of an edit: deltas of small files, chunks of large ones, and what hosts have."""

from __future__ import annotations

import io
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_sync import Replica
from monarch_sync.content.chunks import Chunks, cut
from monarch_sync.content.delta import (
    apply,
    between_chunks,
    compress,
    decode,
    decompress,
    encode,
    patch,
    unpatch,
)
from monarch_sync.content.digest import digest_bytes
from monarch_sync.content.disk import Disk
from monarch_sync.content.stamps import Stamps
from monarch_sync.errors import BadMessage
from monarch_sync.messages import Blob, Need, Refused, StageRequest
from monarch_sync.replicas.store import ContentStore
from tests.sync.author import Author
from tests.sync.trees import manifest_of, push_tree, read_tree

MIB = 1 << 20
words = st.sampled_from([b"", b"a", b"line\n", b"def f():\n", b"\n", b"\0\xff", b"    return 1\n"])
texts = st.lists(words, max_size=30).map(b"".join)


@given(old=texts, new=texts)
@settings(deadline=None)
def test_a_patch_turns_old_into_new(old: bytes, new: bytes) -> None:
    assert unpatch(patch(old, new), old, len(new)) == new
    assert decompress(compress(new), len(new)) == new


def test_an_edited_line_costs_about_that_line() -> None:
    rand = random.Random(0)
    for num_lines in (3000, 150_000):
        lines = [b"    value_%d = %r\n" % (i, rand.random()) for i in range(num_lines)]
        old = b"".join(lines)
        lines[1500] = b"    changed = True\n"
        lines[700:700], lines[2000:2010] = [b"# new\n"], []
        assert len(patch(old, b"".join(lines))) < 100 + len(old) // 5000


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_frame_that_makes_anything_else_is_refused(size: int) -> None:
    old, new = b"old content" * 10, b"new content" * 9 + b"."
    with pytest.raises(BadMessage):
        unpatch(patch(old, new), old, size)
    with pytest.raises(BadMessage):
        decompress(compress(new), size)


@pytest.mark.parametrize(
    "spoil", [lambda f: f[:-1], lambda f: f + f, lambda f: b"", lambda f: b"x"]
)
def test_a_frame_that_is_damaged_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadMessage):
        decompress(spoil(compress(b"content" * 100)), 700)


def test_a_bomb_makes_no_more_than_was_announced() -> None:
    bomb = compress(bytes(1 << 30))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage):
            decompress(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "pieces", [[(0, 11)], [(10, 1), b"123456789"], [(-1, 5), b"12345"], [b"123"], []]
)
def test_a_delta_that_lies_is_refused(pieces: list[tuple[int, int] | bytes]) -> None:
    with pytest.raises(BadMessage):
        decode(encode(pieces), 10, 10)
    with pytest.raises(BadMessage):
        decode(b"\xc1", 10, 10)


def cut_bytes(content: bytes, old: Chunks | None = None) -> Chunks:
    digest, size, chunks = cut(io.BytesIO(content), old)
    assert (digest, size) == (digest_bytes(content), len(content))
    assert sum(chunk.size for chunk in chunks.chunks) == size
    return chunks


def literal_bytes(old: bytes, new: bytes) -> int:
    """How much of `new` travels to whom has `old`; the delta is checked on the way."""
    before = cut_bytes(old)
    pieces = between_chunks(before, cut_bytes(new, before), lambda at, size: new[at : at + size])
    assert apply(pieces, old) == new
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes))


@pytest.mark.long
@pytest.mark.parametrize("base", ["random", "zeros", "rows"])
def test_an_edit_of_a_large_file_moves_little(base: str) -> None:
    rand = random.Random(1)
    old = {
        "random": rand.randbytes(20 * MIB),
        "zeros": bytes(20 * MIB),
        "rows": b"".join(b"%08d,row\n" % i for i in range(20 * MIB // 13)),
    }[base]
    edits = {
        "overwritten": old[: 7 * MIB] + b"x" * 5000 + old[7 * MIB + 5000 :],
        "inserted in front": b"nine more" + old,
        "inserted": old[:5_000_001] + rand.randbytes(777) + old[5_000_001:],
        "deleted": old[:5_000_001] + old[6_000_000:],
        "appended": old + b"more",
        "many": old[:MIB] + b"1" + old[MIB : 9 * MIB] + b"22" + old[9 * MIB + 7 :],
        "twice": old + old,
    }
    for name, new in edits.items():
        assert literal_bytes(old, new) < MIB, name


def test_unrelated_content_is_cut_all_the_same() -> None:
    rand = random.Random(2)
    old, new = rand.randbytes(10 * MIB), rand.randbytes(11 * MIB)
    assert literal_bytes(old, new) == len(new)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_edits_of_a_large_file_can_be_put_together(data: st.DataObject) -> None:
    old = new = random.Random(3).randbytes(2 * MIB)
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(new)))
        gone = data.draw(st.integers(0, 300_000))
        new = new[:at] + data.draw(st.binary(max_size=100)) + new[at + gone :]
    literal_bytes(old, new)


def test_a_large_file_travels_by_its_chunks(folder: Path, replica: Replica) -> None:
    path = folder / "weights"
    content = random.Random(4).randbytes(12 * MIB)
    path.write_bytes(content)
    author = Author(folder, replica)
    assert author.push().bytes_sent == len(content)
    path.write_bytes(content[: 3 * MIB] + b"inserted" + content[3 * MIB :])
    assert author.push([path]).bytes_sent < MIB
    assert read_tree(replica.root) == read_tree(folder)


def test_an_edit_whose_base_is_gone_from_the_host_travels_whole(
    folder: Path, replica: Replica
) -> None:
    path = folder / "a.py"
    content = random.Random(5).randbytes(6000)
    path.write_bytes(content)
    author = Author(folder, replica)
    author.push()
    (replica.root / "a.py").write_bytes(b"theirs")
    path.write_bytes(content + b"more")
    assert author.push([path]).bytes_sent > 5000
    assert (replica.root / "a.py").read_bytes() == path.read_bytes()
    assert len(list(replica.root.glob("a.py.host-*"))) == 1


@pytest.mark.parametrize("pieces", [[(0, 3), b"x"], [(0, 4)], [b"1234"]])
def test_a_delta_to_something_else_is_not_believed(
    replica: Replica, pieces: list[tuple[int, int] | bytes]
) -> None:
    push_tree(replica, 1, {"a": b"old"})
    manifest = manifest_of({"a": b"new."})
    delta = encode(pieces)
    blob = Blob(digest_bytes(b"new."), len(delta), "delta", digest_bytes(b"old"))
    stage = StageRequest(
        2, "me", manifest.digest_name, manifest.digest, b"", manifest.rows(), [], [blob]
    )  # fmt: skip
    reply = replica.handle(stage, [delta])
    assert reply == Need([blob.digest]) or (isinstance(reply, Refused) and reply.code == "damaged")
    assert read_tree(replica.root) == {"a": b"old"}


def test_a_renamed_folder_is_renamed_whole(folder: Path, replica: Replica) -> None:
    (folder / "old/sub").mkdir(parents=True)
    for i in range(20):
        (folder / "old/sub" / str(i)).write_bytes(b"%d" % i)
    author = Author(folder, replica)
    author.push()
    inode = (replica.root / "old/sub/7").stat().st_ino
    (folder / "old").rename(folder / "new")
    push = author.push()
    assert push.bytes_sent == 0
    assert push.staged is not None
    assert (push.staged.num_moved, push.staged.num_written) == (20, 0)
    assert (replica.root / "new/sub/7").stat().st_ino == inode
    assert read_tree(replica.root) == read_tree(folder)


def test_a_renamed_folder_leaves_behind_what_is_the_hosts(folder: Path, replica: Replica) -> None:
    (folder / "old").mkdir()
    (folder / "old/a").write_bytes(b"1")
    (folder / "old/b").write_bytes(b"2")
    author = Author(folder, replica)
    author.push()
    (replica.root / "old/checkpoint").write_bytes(b"weights")
    (folder / "old").rename(folder / "new")
    assert author.push().bytes_sent == 0
    assert read_tree(replica.root) == {
        "old": None, "old/checkpoint": b"weights", "new": None, "new/a": b"1", "new/b": b"2",
    }  # fmt: skip


def test_a_renamed_folder_takes_along_what_was_changed_in_it(
    folder: Path, replica: Replica
) -> None:
    (folder / "old").mkdir()
    for name in "abc":
        (folder / "old" / name).write_bytes(name.encode())
    author = Author(folder, replica)
    author.push()
    (replica.root / "old/a").write_bytes(b"theirs")
    (folder / "old").rename(folder / "new")
    author.push()
    assert (replica.root / "new/a").read_bytes() == b"theirs"
    assert not (replica.root / "old").exists()
    (folder / "new/a").write_bytes(b"edited")
    author.push()
    (kept,) = (replica.root / "new").glob("a.host-*")
    assert kept.read_bytes() == b"theirs"
    assert (replica.root / "new/a").read_bytes() == b"edited"


def test_a_renamed_folder_that_lost_a_file_there_is_made_whole(
    folder: Path, replica: Replica
) -> None:
    (folder / "old").mkdir()
    for name in "abc":
        (folder / "old" / name).write_bytes(name.encode())
    author = Author(folder, replica)
    author.push()
    (replica.root / "old/b").unlink()
    (folder / "old").rename(folder / "new")
    author.push()
    assert read_tree(replica.root) == read_tree(folder)


def test_folders_that_moved_into_a_new_one_and_out_again(folder: Path, replica: Replica) -> None:
    for name in ("one", "two", "three"):
        (folder / name / "deep").mkdir(parents=True)
        (folder / name / "deep/x").write_bytes(name.encode())
        (folder / name / "link").symlink_to("deep/x")
    author = Author(folder, replica)
    author.push()
    inode = (replica.root / "two/deep/x").stat().st_ino
    (folder / "all").mkdir()
    for name in ("one", "two"):
        (folder / name).rename(folder / "all" / name)
    (folder / "all/one/deep/x").write_bytes(b"edited on the way")
    assert author.push().bytes_sent < 50
    assert read_tree(replica.root) == read_tree(folder)
    assert (replica.root / "all/two/deep/x").stat().st_ino == inode
    for name in ("one", "two"):
        (folder / "all" / name).rename(folder / name)
    (folder / "all").rmdir()
    assert author.push().bytes_sent == 0
    assert read_tree(replica.root) == read_tree(folder)


def test_what_a_host_has_had_is_not_sent_again(folder: Path, replica: Replica) -> None:
    author = Author(folder, replica)
    rand = random.Random(6)
    states = [{str(i): rand.randbytes(3000) for i in range(20)} for _ in range(2)]
    for number, state in enumerate([*states, *states]):
        for name, content in state.items():
            (folder / name).write_bytes(content)
        sent = author.push().bytes_sent
        assert (sent == 0) == (number >= 2)
        assert read_tree(replica.root) == read_tree(folder)
    # A host whose store was emptied says what it needs.
    replica.settle()
    for stored in (replica.state_folder / "store").iterdir():
        stored.unlink()
    for name, content in states[0].items():
        (folder / name).write_bytes(content)
    assert author.push().bytes_sent > 0
    assert read_tree(replica.root) == read_tree(folder)


@pytest.mark.parametrize("is_near", [True, False])
def test_many_small_files_travel_together(folder: Path, replica: Replica, is_near: bool) -> None:
    for i in range(300):
        (folder / f"{i}.py").write_bytes(b"def f():\n    return %d\n" % i * 30)
    (folder / "empty").write_bytes(b"")
    author = Author(folder, replica)
    author.view.is_near = is_near
    size = sum(path.stat().st_size for path in folder.iterdir())
    sent = author.push().bytes_sent
    assert sent == size if is_near else sent < size / 5
    assert read_tree(replica.root) == read_tree(folder)


def test_a_store_lets_go_what_was_used_least_recently(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", Disk(), Stamps(), max_bytes=25)
    contents = [b"%d" % i * 10 for i in range(3)]
    digests = [digest_bytes(content) for content in contents]
    for content, digest in zip(contents[:2], digests, strict=False):
        (tmp_path / "file").write_bytes(content)
        store.take(str(tmp_path / "file"), digest, os.stat(tmp_path / "file"))
    assert store.find(digests[0]) is not None
    (tmp_path / "file").write_bytes(contents[2])
    store.take(str(tmp_path / "file"), digests[2], os.stat(tmp_path / "file"))
    store.trim()
    assert store.num_bytes == 20
    assert [store.find(digest) is not None for digest in digests] == [True, False, True]
    assert ContentStore(tmp_path / "store", Disk(), Stamps()).num_bytes == 20
