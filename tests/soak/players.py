"""The players of the soak test: each owns a mesh and makes random moves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from monarch.actor import ActorError, Channel, HostMesh, SupervisionError
from tests.soak.actors import AsyncLedger, Boss, Ledger

# A call that takes longer has been forgotten: nothing that is asked of an actor takes a second.
SECONDS = 60.0
# How long after a template was killed its host may still be found without one.
GRACE_SECONDS = 5.0


class Ground:
    """The hosts to play on, what was done to them, and what has gone wrong."""

    def __init__(self, hosts: dict[str, HostMesh], host_pids: dict[str, int]) -> None:
        self.hosts = hosts
        self.host_pids = host_pids
        self.moves: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self.stop = threading.Event()
        self._kills: dict[str, float] = {}
        self._justified: set[str] = set()
        self._lock = threading.Lock()

    def wrong(self, text: str) -> None:
        with self._lock:
            self.wrongs.append(text)

    def count(self, move: str, num: int = 1) -> None:
        with self._lock:
            self.moves[move] += num

    def kill_templates(self, host: str) -> None:
        """SIGKILL every template of a host, and with them all of its procs."""
        self._kills[host] = time.monotonic()
        for child in psutil.Process(self.host_pids[host]).children():
            with contextlib.suppress(psutil.Error):
                if "monarch.runtime.entry.zygote" in child.cmdline():
                    child.kill()
        self._kills[host] = time.monotonic()

    def was_hit(self, host: str, since: float) -> bool:
        return self._kills.get(host, -1e9) + GRACE_SECONDS > since

    def justify(self, mesh: str) -> None:
        """From here on, a failure of ``mesh`` is what was asked for."""
        self._justified.add(mesh)

    def on_fault(self, failure: Any) -> None:
        """Faults that reach the root: each must be one that was asked for."""
        self.count("faults")
        name = str(failure.mesh_name) if hasattr(failure, "mesh_name") else failure.report()
        if any(mesh in name for mesh in list(self._justified)):
            return
        if any(self.was_hit(host, time.monotonic() - GRACE_SECONDS) for host in self._kills):
            return
        self.wrong(f"a fault that nobody caused: {failure.report()}")


class Doomed(Exception):
    """The field was lost by something that the soak did."""


class Field:
    """A mesh of procs with a ledger, and the numbers that were sent to each rank."""

    def __init__(self, ground: Ground, host: str, name: str, num_procs: int, is_async: bool):
        self.ground = ground
        self.host = host
        self.name = name
        self.started = time.monotonic()
        self.is_doomed = False
        self.num_procs = num_procs
        self.is_async = is_async
        self.procs = ground.hosts[host].spawn_procs({"gpus": num_procs}, name=name)
        self.ledger: Any = self.procs.spawn(f"{name}-l", AsyncLedger if is_async else Ledger)
        self.sent: dict[str, dict[int, int]] = {}

    def doom(self) -> None:
        self.is_doomed = True
        self.ground.justify(self.name)

    @property
    def may_fail(self) -> bool:
        return self.is_doomed or self.ground.was_hit(self.host, self.started)

    def next(self, sender: str, ranks: list[int]) -> dict[int, int]:
        numbers = self.sent.setdefault(sender, {})
        for rank in ranks:
            numbers[rank] = numbers.get(rank, 0) + 1
        return {rank: numbers[rank] for rank in ranks}

    def audit(self) -> None:
        """Check that every rank has received all that was sent to it."""
        for rank, (last, complaints) in enumerate(self.get(self.ledger.books.call()).values()):
            for complaint in complaints:
                self.ground.wrong(f"{self.name}: {complaint}")
            for sender, numbers in self.sent.items():
                if last.get(sender, 0) != numbers.get(rank, 0):
                    self.ground.wrong(
                        f"{self.name} rank {rank}: {last.get(sender, 0)} messages of {sender} "
                        f"came, {numbers.get(rank, 0)} were sent"
                    )

    def get(self, future: Any) -> Any:
        """The value of a call; every other end must have a reason."""
        try:
            return future.get(timeout=SECONDS)
        except TimeoutError:
            self.ground.wrong(f"{self.name}: a call did not end in {SECONDS} s")
            raise Doomed from None
        except SupervisionError as error:
            if not self.may_fail:
                self.ground.wrong(f"{self.name}: a failure that nobody caused: {error}")
            raise Doomed from None

    def stop(self) -> None:
        try:
            self.procs.stop().get(timeout=SECONDS)
        except TimeoutError:
            self.ground.wrong(f"{self.name}: it does not stop")
        except SupervisionError as error:
            if not self.may_fail:
                self.ground.wrong(f"{self.name}: stopping failed: {error}")


class Player:
    """Makes moves drawn from its own seed, on fields of its own."""

    def __init__(self, ground: Ground, name: str, seed: str, rest: threading.Barrier) -> None:
        self.ground = ground
        self.name = name
        self.dice = random.Random(seed)
        self.wants_rest = threading.Event()
        self._rest = rest
        self._numbers = iter(range(1, 10**9))
        self._fields: list[Field] = []
        moves: dict[Callable[[], None], int] = {
            self.call: 12, self.broadcast: 12, self.adverbs: 8, self.large: 5, self.ports: 6,
            self.slow: 2, self.raising: 4, self.references: 5, self.boss: 2, self.short_lived: 3,
            self.spoil: 1, self.kill: 2, self.kill_while_called: 2, self.kill_template: 1,
        }  # fmt: skip
        self._moves, self._weights = list(moves), list(moves.values())

    def run(self) -> None:
        while not self.ground.stop.is_set():
            if self.wants_rest.is_set():
                self.leave_all()
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._rest.wait(300)  # all are here: the ground is measured
                    self._rest.wait(300)
                continue
            move = self.dice.choices(self._moves, self._weights)[0]
            self.ground.count(move.__name__)
            try:
                move()
            except Doomed:
                self.leave_all()
            except Exception:
                self.ground.wrong(f"{self.name}, {move.__name__}: {traceback.format_exc()}")
                self.leave_all()
        self.leave_all()

    def leave_all(self) -> None:
        """Audit and stop all fields."""
        for field in self._fields:
            with contextlib.suppress(Doomed):
                if not field.may_fail:
                    field.audit()
            field.stop()
        self._fields.clear()

    def field(self, is_async: bool = False) -> Field:
        """One of the standing fields, made where there is none."""
        standing = [field for field in self._fields if field.is_async == is_async]
        if not standing:
            standing = [self.spawn(is_async)]
            self._fields += standing
        return self.dice.choice(standing)

    def spawn(self, is_async: bool = False) -> Field:
        host = self.dice.choice(sorted(self.ground.hosts))
        num_procs = self.dice.choice([1, 2, 2, 3])
        name = f"{self.name}n{next(self._numbers)}n"
        return Field(self.ground, host, name, num_procs, is_async)

    def part(self, field: Field) -> tuple[Any, list[int]]:
        """The ledger or a slice of it, with the spawn ranks of its members."""
        if field.num_procs == 1 or self.dice.random() < 0.5:
            return field.ledger, list(range(field.num_procs))
        if self.dice.random() < 0.5:
            rank = self.dice.randrange(field.num_procs)
            return field.ledger.slice(gpus=rank), [rank]
        start = self.dice.randrange(field.num_procs)
        ranks = list(range(start, field.num_procs))
        return field.ledger.slice(gpus=slice(start, field.num_procs)), ranks

    # The moves.

    def call(self) -> None:
        field = self.field(self.dice.random() < 0.3)
        waiting = []
        for _ in range(self.dice.randrange(1, 30)):
            mesh, ranks = self.part(field)
            numbers = field.next(self.name, ranks)
            waiting.append((mesh.note.call(self.name, numbers), list(numbers.values())))
        self.ground.count("messages", sum(len(numbers) for _, numbers in waiting))
        for future, numbers in waiting:
            got = field.get(future).values()
            if list(got) != numbers:
                self.ground.wrong(f"{field.name}: {got} was answered to {numbers}")

    def broadcast(self) -> None:
        field = self.field(self.dice.random() < 0.3)
        for _ in range(self.dice.randrange(1, 300)):
            mesh, ranks = self.part(field)
            load = bytes(self.dice.randrange(2000)) if self.dice.random() < 0.1 else None
            mesh.note.broadcast(self.name, field.next(self.name, ranks), load)
            self.ground.count("messages", len(ranks))
        if self.dice.random() < 0.3:
            field.audit()

    def adverbs(self) -> None:
        field = self.field()
        rank = self.dice.randrange(field.num_procs)
        one = field.ledger.slice(gpus=rank) if field.num_procs > 1 else field.ledger
        assert field.get(one.wait.call_one(0.0)) == rank
        assert field.get(field.ledger.wait.choose(0.0)) in range(field.num_procs)
        came = [field.get(future) for future in field.ledger.wait.stream(0.001)]
        values = sorted(value[1] if isinstance(value, tuple) else value for value in came)
        assert values == list(range(field.num_procs)), values

    def large(self) -> None:
        field = self.field()
        size = self.dice.choice([1, 60_000, 70_000, 300_000, 2_000_000, 8_000_000])
        data = self.dice.randbytes(1000) * (size // 1000 + 1)
        for digest, back in field.get(field.ledger.digest.call(data)).values():
            assert digest == hashlib.blake2b(data).hexdigest(), "changed on its way there"
            assert bytes(back) == data, "changed on its way back"
        self.ground.count("bytes", 2 * len(data) * field.num_procs)

    def ports(self) -> None:
        field = self.field()
        num = self.dice.randrange(1, 100)
        port, receiver = Channel.open()
        done = field.ledger.count_into.call(port, num)
        next_of = dict.fromkeys(range(field.num_procs), 0)
        field.get(done)
        for _ in range(num * field.num_procs):
            rank, number = field.get(receiver.recv())
            assert number == next_of[rank], f"{number} of rank {rank} instead of {next_of[rank]}"
            next_of[rank] += 1
        self.ground.count("messages", num * field.num_procs)

    def slow(self) -> None:
        field = self.field()
        ranks = list(range(field.num_procs))
        seconds = self.dice.choice([0.01, 0.1, 0.3])
        field.ledger.slowly.broadcast(self.name, field.next(self.name, ranks), seconds)
        for _ in range(self.dice.randrange(100, 2000)):
            field.ledger.note.broadcast(self.name, field.next(self.name, ranks))
            self.ground.count("messages", len(ranks))
        field.audit()

    def raising(self) -> None:
        field = self.field()
        try:
            field.get(field.ledger.fail.call())
        except ActorError as error:
            if "on purpose" not in str(error):
                self.ground.wrong(f"{field.name}: another error came back: {error}")
        else:
            self.ground.wrong(f"{field.name}: no error came back")
        # The actor lives.
        field.audit()

    def references(self) -> None:
        """Actors of one field write into the books of another, each in its own order."""
        field, other = self.field(), self.spawn()
        self._fields.append(other)
        ranks = list(range(other.num_procs))
        num = self.dice.randrange(1, 40)
        for rank in range(field.num_procs):
            one = field.ledger.slice(gpus=rank) if field.num_procs > 1 else field.ledger
            sender = f"{field.name}r{rank}"
            numbers = {r: other.sent.get(sender, {}).get(r, 0) + 1 for r in ranks}
            try:
                field.get(one.pass_on.call_one(other.ledger, sender, numbers, num))
            except ActorError as error:
                # The one that was asked lives, and has met the death of the other.
                if not other.may_fail or not isinstance(error.exception, SupervisionError):
                    raise
                raise Doomed from None
            other.sent[sender] = {r: number + num - 1 for r, number in numbers.items()}
        self.ground.count("messages", num * field.num_procs * other.num_procs)
        other.audit()
        self._fields.remove(other)
        other.stop()

    def boss(self) -> None:
        """An actor that owns procs, loses one of them, and handles it."""
        field = self.spawn()
        self._fields.append(field)
        boss: Any = field.procs.slice(gpus=0).spawn(f"{field.name}-b", Boss)
        try:
            pids = field.get(boss.hire.call_one(self.dice.choice([1, 2])))
            complaints = field.get(boss.work.call_one(self.name, self.dice.randrange(1, 100)))
            for complaint in complaints:
                self.ground.wrong(f"{field.name}, hired: {complaint}")
            if self.dice.random() < 0.5:
                os.kill(pids[0], signal.SIGKILL)
                deadline = time.monotonic() + SECONDS
                while not field.get(boss.seen.call_one()) and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert field.get(boss.seen.call_one()) == 1, "the boss was not told, or twice"
            if self.dice.random() < 0.5:
                field.get(boss.dismiss.call_one())
        except (ActorError, ProcessLookupError):
            if not field.may_fail:
                raise
            raise Doomed from None
        self._fields.remove(field)
        field.stop()

    def short_lived(self) -> None:
        field = self.spawn(self.dice.random() < 0.3)
        self._fields.append(field)
        if self.dice.random() < 0.7:
            field.audit()
        self._fields.remove(field)
        field.stop()

    def spoil(self) -> None:
        """A broadcast that raises fails the actors, and nobody else."""
        field = self.spawn()
        self._fields.append(field)
        field.audit()
        field.doom()
        field.ledger.fail.broadcast()
        try:
            field.ledger.wait.call(0.0).get(timeout=SECONDS)
        except SupervisionError:
            pass
        else:
            self.ground.wrong(f"{field.name}: a failed actor answers")
        self._fields.remove(field)
        field.stop()

    def kill(self) -> None:
        field = self.spawn()
        self._fields.append(field)
        pids = field.get(field.ledger.pid.call()).values()
        victim = self.dice.randrange(field.num_procs)
        field.doom()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[victim], signal.SIGKILL)
        try:
            field.ledger.wait.call(30.0).get(timeout=SECONDS)
        except SupervisionError:
            pass
        else:
            self.ground.wrong(f"{field.name}: a call to a dead proc was answered")
        self._fields.remove(field)
        field.stop()

    def kill_while_called(self) -> None:
        """The dead fail their calls; the others have lost nothing."""
        field = self.spawn()
        self._fields.append(field)
        pids = field.get(field.ledger.pid.call()).values()
        victim = self.dice.randrange(field.num_procs)
        field.doom()
        calls = []
        for number in range(60):
            if number == 30:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[victim], signal.SIGKILL)
            for rank in range(field.num_procs):
                one = field.ledger.slice(gpus=rank) if field.num_procs > 1 else field.ledger
                numbers = {rank: number + 1}
                calls.append((rank, number + 1, one.note.call_one(self.name, numbers)))
        for rank, number, future in calls:
            try:
                assert field.get(future) == number
            except Doomed:
                hit = self.ground.was_hit(field.host, field.started)
                if rank != victim and not hit:
                    self.ground.wrong(f"{field.name} rank {rank}: fell with rank {victim}")
        self.ground.count("messages", len(calls))
        self._fields.remove(field)
        field.stop()

    def kill_template(self) -> None:
        self.ground.kill_templates(self.dice.choice(sorted(self.ground.hosts)))
        raise Doomed


def threads_of(players: list[Player]) -> Iterator[threading.Thread]:
    for player in players:
        yield threading.Thread(target=player.run, name=f"soak-{player.name}")
