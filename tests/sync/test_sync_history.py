"""What a replica remembers: every generation, the way back to it, and when that is gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from monarch_sync import Manifest, Replica, Scanner, Workspace, sync_local
from monarch_sync.content.disk import Disk
from monarch_sync.history import History
from monarch_sync.messages import (
    AskChanges,
    AskContent,
    AskHistory,
    AskMissing,
    AskState,
    Changes,
    Commit,
    HistoryReply,
    Need,
    Piece,
    Refused,
    Staged,
    StageRequest,
    StateReply,
    decode,
    encode,
)
from monarch_sync.tree.entry import Entry, EntryKind


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace({folder: ""})


def random_edit(folder: Path, rand: random.Random) -> None:
    """A few files written, renamed, made executable or deleted."""
    for _ in range(rand.randrange(1, 5)):
        path = folder / f"d{rand.randrange(3)}" / f"f{rand.randrange(6)}.py"
        path.parent.mkdir(exist_ok=True)
        known = [p for p in folder.rglob("*.py") if p.is_file()]
        kind = rand.randrange(4)
        if kind == 0 and known:
            rand.choice(known).unlink()
        elif kind == 1 and known:
            rand.choice(known).rename(path)
        elif kind == 2 and known:
            rand.choice(known).chmod(rand.choice((0o644, 0o755, 0o600)))
        else:
            path.write_text(f"value = {rand.random()}\n")


@pytest.mark.parametrize("seed", range(5))
def test_every_state_is_found_again(
    seed: int, folder: Path, workspace: Workspace, replica: Replica
) -> None:
    rand = random.Random(seed)
    states: dict[int, Manifest] = {}
    for _ in range(25):
        random_edit(folder, rand)
        report = sync_local(workspace, replica)
        states[report.generation] = Scanner(workspace).scan().manifest
    past = list(replica.past())
    assert [one.generation for one in past] == sorted(states, reverse=True)
    for one in past:
        assert one.manifest == states[one.generation]
        assert one.is_whole, "a replaced content is in the store"
        assert one.digest == states[one.generation].digest


def test_it_outlives_the_agent(folder: Path, workspace: Workspace, replica: Replica) -> None:
    for number in range(3):
        (folder / "a.py").write_text(f"{number}\n")
        sync_local(workspace, replica)
    replica.close()
    again = Replica(replica.root)
    assert [one.generation for one in again.past()] == [3, 2, 1]
    (folder / "a.py").write_text("later\n")
    sync_local(workspace, again)
    assert [(one.generation, one.is_whole) for one in again.past()] == [
        (4, True), (3, True), (2, True), (1, True),
    ]  # fmt: skip
    again.close()


def test_what_was_taken_back_is_known_as_that_also_later(
    folder: Path, workspace: Workspace, replica: Replica
) -> None:
    for number in range(2):
        (folder / "a.py").write_text(f"{number}\n")
        sync_local(workspace, replica)
    first = list(replica.past())[1].manifest
    assert first is not None
    now = replica.manifest
    back = StageRequest(
        3, "a", now.digest_name, first.digest, b"", first.rows(), [], [], takes_back=True
    )  # fmt: skip
    assert isinstance(replica.handle(decode(encode(back))), Staged)
    replica.handle(Commit(3))
    (folder / "a.py").write_text("later\n")
    sync_local(workspace, replica)
    replica.close()
    again = Replica(replica.root)
    assert [(one.generation, one.is_taken_back) for one in again.past()] == [
        (4, False), (3, False), (2, True), (1, False),
    ]  # fmt: skip
    told = again.handle(AskHistory(9))
    assert isinstance(told, HistoryReply)
    assert [one.is_taken_back for one in told.generations] == [False, False, True, False]
    again.close()


def test_a_trimmed_store_is_seen(folder: Path, workspace: Workspace, replica: Replica) -> None:
    for number in range(3):
        (folder / "a.py").write_text(f"{number}\n")
        sync_local(workspace, replica)
    (folder / "a.py").write_text("1\n")
    sync_local(workspace, replica)
    replica.close()
    for content in (replica.state_folder / "store").iterdir():
        content.unlink()
    again = Replica(replica.root)
    # 4 and 2 are one state, and it is the one that is there.
    assert [one.is_whole for one in again.past()] == [True, False, True, False]
    again.close()


def test_what_somebody_took_away_on_the_host_is_in_the_past_all_the_same(
    folder: Path, workspace: Workspace, replica: Replica
) -> None:
    for name in ("a.py", "b.py"):
        (folder / name).write_text(name)
    first = sync_local(workspace, replica).digest
    (replica.root / "b.py").unlink()
    (folder / "a.py").write_text("2")
    replica.close()
    again = Replica(replica.root)
    from monarch_sync.push import HostView, Push  # a whole stage, which looks for what is missing

    scanner = Scanner(workspace)
    push = Push(workspace, scanner.scan().manifest, HostView(), 2, scanner.contents)
    step = push.first()
    while hasattr(step, "blobs"):
        step = push.receive(again.handle(step.message, step.blobs))
    assert again.commit(2)
    past = {one.generation: one for one in again.past()}
    assert past[1].manifest is not None
    assert past[1].manifest.digest.hex() == first
    again.close()


def test_a_commit_that_never_began_is_none_of_the_past(
    folder: Path, workspace: Workspace, replica: Replica
) -> None:
    (folder / "a.py").write_text("1")
    sync_local(workspace, replica)
    replica._history.add(2, "me", replica.manifest, Manifest(), 0.0)
    replica.close()
    again = Replica(replica.root)
    assert [one.generation for one in again.past()] == [1]
    again.close()


def entries(number: int) -> Manifest:
    return Manifest([Entry("a.py", EntryKind.FILE, 0o644, number, bytes([number]) * 16)])


def test_it_is_bounded(tmp_path: Path) -> None:
    history = History(tmp_path, Disk(), 0, max_records=10)
    for number in range(1, 40):
        history.add(number, "me", entries(number - 1), entries(number), 0.0)
    past = list(history.walk(entries(39), lambda digest: True))
    assert 5 <= len(past) <= 10
    assert [one.generation for one in past] == list(range(39, 39 - len(past), -1))
    assert all(one.manifest == entries(one.generation) for one in past)
    again = History(tmp_path, Disk(), 39)
    assert len(list(again.walk(entries(39), lambda digest: True))) == len(past)


def test_a_state_that_does_not_prove_itself_is_not_given(tmp_path: Path) -> None:
    history = History(tmp_path, Disk(), 0)
    for number in range(1, 4):
        history.add(number, "me", entries(number - 1), entries(number), 0.0)
    strange = Manifest([Entry("b.py", EntryKind.FILE, 0o644, 1, b"x" * 16)])
    assert [one.manifest for one in history.walk(strange, lambda digest: True)] == [None] * 3


def test_a_torn_end_is_passed_over(tmp_path: Path) -> None:
    history = History(tmp_path, Disk(), 0)
    for number in range(1, 4):
        history.add(number, "me", entries(number - 1), entries(number), 0.0)
    whole = (tmp_path / "history.2").read_bytes()
    (tmp_path / "history.2").write_bytes(whole[:-3])
    again = History(tmp_path, Disk(), 3)
    again.add(3, "me", entries(2), entries(3), 0.0)
    past = list(again.walk(entries(3), lambda digest: True))
    assert [one.generation for one in past] == [3, 2, 1]
    assert (tmp_path / "history.2").read_bytes() == whole


# Questions


def ask(replica: Replica, question: object) -> object:
    return decode(encode(replica.handle(decode(encode(question)))))  # type: ignore[arg-type]


def test_questions_are_answered(folder: Path, workspace: Workspace, replica: Replica) -> None:
    for number in range(3):
        (folder / "a.py").write_text(f"{number}\n")
        sync_local(workspace, replica)
    told = ask(replica, AskHistory(2))
    assert isinstance(told, HistoryReply)
    assert [one.generation for one in told.generations] == [3, 2]
    assert told.generations[0].paths == [b"a.py"]
    held = ask(replica, AskState(1))
    assert isinstance(held, StateReply)
    state = Manifest.from_rows(held.rows)
    assert state.digest == held.digest
    entry = state.get("a.py")
    assert entry is not None
    piece = ask(replica, AskContent(entry.digest, 0, 100))
    assert isinstance(piece, Piece)
    assert piece.data == b"0\n"
    assert ask(replica, AskContent(entry.digest, 1, 1)) == Piece(b"\n")
    missing = ask(replica, AskMissing([entry.digest, b"?" * 16]))
    assert missing == Need([b"?" * 16])
    unknown = (AskState(9), AskContent(b"?" * 16, 0, 1), AskChanges(1, 9), AskChanges(0, 3))
    for question in unknown:
        assert isinstance(ask(replica, question), Refused)


def test_what_changed_between_two_generations_is_told(
    folder: Path, workspace: Workspace, replica: Replica
) -> None:
    for number in range(4):
        (folder / "a.py").write_text(f"{number}\n")
        (folder / f"b{number}.py").write_text("")
        sync_local(workspace, replica)
    ahead, back = ask(replica, AskChanges(2, 3)), ask(replica, AskChanges(3, 2))
    assert isinstance(ahead, Changes)
    assert isinstance(back, Changes)
    assert [row[0] for row in ahead.before] == [b"a.py"]
    assert [row[0] for row in ahead.now] == [b"a.py", b"b2.py"]
    assert (ahead.before, ahead.now) == (back.now, back.before)
    held = ask(replica, AskState(3))
    assert isinstance(held, StateReply)
    assert (ahead.generation, ahead.digest) == (3, held.digest)


def test_a_question_does_not_disturb_what_is_staged(
    folder: Path, workspace: Workspace, replica: Replica
) -> None:
    from monarch_sync.push import HostView, Push, PushMessage

    (folder / "a.py").write_text("1")
    scanner = Scanner(workspace)
    push = Push(workspace, scanner.scan().manifest, HostView(), 1, scanner.contents)
    step = push.first()
    while isinstance(step, PushMessage):
        step = push.receive(replica.handle(step.message, step.blobs))
    ask(replica, AskHistory(5))
    ask(replica, AskContent(b"?" * 16, 0, 1))
    push.committed(replica.commit(1))
    assert (replica.root / "a.py").read_text() == "1"
