"""The backend by an RDMA device, whose hardware reads and writes the owner's memory.

A reader asks the owner once for a queue pair, and once for the key of each registration. From then
on a read takes no time of the owner. The owner's table is registered too: the entry is read before
the bytes and after them, in order, as on one host. The owner counts the writes, and does the atomic
operations itself, so that they are atomic for processes of its host as well.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from monarch.rdma.memory import table as tables
from monarch.rdma.memory.layout import Run, RunReader
from monarch.rdma.memory.memory import copy_runs, memory_of
from monarch.rdma.memory.region import Part, Ranges, RemoteRegion
from monarch.rdma.memory.registry import registry
from monarch.rdma.memory.table import ENTRY, ENTRY_BYTES, TableEntry
from monarch.rdma.ways.asking import ask_owner, exchange_by_owner
from monarch.rdma.ways.backend import BackendUnavailable, Entries, WordChange
from monarch.rdma.ways.serving import answers
from monarch.rdma.ways.verbs.devices import choose, register_gpu, usable
from monarch.rdma.ways.verbs.library import (
    READ,
    SUCCESS,
    WRITE,
    GuardedPair,
    MemoryKeys,
    QueuePair,
    QueuePairInfo,
    VerbsDevice,
    VerbsFailed,
    VerbsLibrary,
    WorkRequest,
    works_of,
)
from monarch.runtime import process
from monarch.runtime.links.network import Gone
from monarch.wire.address import Uid

T = TypeVar("T")

_MOST_WORK = 16
_BOUNCE_BYTES = 4 * 2**20
_SMALL_BYTES = 64 * 1024
_LOCK_SECONDS = 30.0
_PAUSE_SECONDS = 0.00005
_SPINS = 200


@dataclass
class _Connection:
    """A queue pair to one owner; ``lock`` allows one transfer at a time."""

    pair: QueuePair
    bounce: mmap.mmap
    address: int
    keys: MemoryKeys
    lock: threading.Lock
    is_broken: bool = False

    def close(self) -> None:
        """Close the connection, without waiting. Any thread may call it.

        If a transfer is running, its thread closes the connection at the transfer's end.
        """
        self.is_broken = True
        if self.lock.acquire(blocking=False):
            try:
                self.pair.close()
                self.keys.close()
            finally:
                self.lock.release()


class Verbs:
    """The backend over RDMA devices, of this process both as a reader and as an owner.

    It has the device, the connections in both directions, and the keys of registered memory.
    """

    name = "ibverbs"

    def __init__(self, library: VerbsLibrary) -> None:
        self._library = library
        self._lock = threading.RLock()
        #: Held while a connection is made: its owner may be asking this process for the same.
        self._connecting = threading.Lock()
        #: The device; ``None`` until it is used.
        self._opened: VerbsDevice | None = None
        #: As a reader: the connections, by owner.
        self._connections: dict[Uid, _Connection] = {}
        #: As a reader: the remote keys of a registration and of its owner's table.
        self._remote_keys: dict[tuple[int, int, int], tuple[int, int]] = {}
        #: As an owner: the queue pairs, by reader.
        self._served: dict[Uid, QueuePair] = {}
        #: As an owner: the keys of registrations, by slot and key, and of the table.
        self._own_keys: dict[tuple[int, int], MemoryKeys] = {}
        self._table_keys: MemoryKeys | None = None
        #: As an owner: the descriptor and slot of each write in progress, by reader and number.
        self._writing: dict[tuple[Uid, int], tuple[int, int]] = {}
        self._next_write = 0
        answers["verbs connect"], answers["verbs key"] = self._on_connect, self._on_key
        answers["verbs begin"], answers["verbs end"] = self._on_begin, self._on_end

    @property
    def _device(self) -> VerbsDevice:
        with self._lock:
            if self._opened is None:
                names = usable(self._library.list_devices())
                if not names:
                    raise VerbsFailed("there is no RDMA device")
                self._opened = self._library.open(choose(names))
            return self._opened

    # The side of a reader.

    def read(self, part: Part | Ranges, into: Sequence[Run], deadline: float) -> Entries:
        region = part.region

        def move(connection: _Connection, keys: tuple[int, int]) -> Entries:
            memory_key, table_key = keys
            before = self._entry(connection, region, table_key, deadline)
            region.check(before)
            self._move(READ, connection, memory_key, part.runs(), into, deadline)
            after = self._entry(connection, region, table_key, deadline)
            region.check(after)
            return before, after

        return self._over_connection(region, move, deadline)

    def write(self, part: Part, source: Sequence[Run], deadline: float) -> None:
        region = part.region

        def move(connection: _Connection, keys: tuple[int, int]) -> None:
            number = ask_owner(region, "verbs begin", {}, deadline)["number"]
            is_done = False
            try:
                self._move(WRITE, connection, keys[0], part.runs(), source, deadline)
                is_done = True
            finally:
                about = {"number": number, "done": is_done}
                ask_owner(region, "verbs end", about, deadline + _LOCK_SECONDS)

        self._over_connection(region, move, deadline)

    def exchange(
        self, region: RemoteRegion, offset: int, change: WordChange, deadline: float
    ) -> int:
        return exchange_by_owner(region, offset, change, deadline)

    def _over_connection(
        self,
        region: RemoteRegion,
        move: Callable[[_Connection, tuple[int, int]], T],
        deadline: float,
    ) -> T:
        """Call ``move`` with a connection and the remote keys, and return its result.

        If the connection fails, ``move`` is called once more with a new connection.
        """
        errors: list[VerbsFailed] = []
        while len(errors) < 2:
            try:
                connection = self._connection(region, deadline)
            except VerbsFailed as refused:
                raise BackendUnavailable(str(refused)) from None
            # After an error the owner is asked again: the memory may have ended.
            keys = self._keys(region, deadline, anew=bool(errors))
            try:
                with connection.lock:
                    if connection.is_broken:
                        continue  # Another transfer, or the owner's end, has closed it.
                    return move(connection, keys)
            except VerbsFailed as failed:
                errors.append(failed)
                connection.is_broken = True
            except TimeoutError:
                # Posted writes may still arrive: until then the memory is not freed.
                connection.is_broken = True
                raise
            finally:
                if connection.is_broken:
                    self._drop_connection(region.owner.uid, connection)
        raise region.error(
            f"the RDMA device cannot reach it: {errors[-1]}. Try again; what was written may be "
            "there in part"
        )

    def _connection(self, region: RemoteRegion, deadline: float) -> _Connection:
        with self._connecting:
            connection = self._connections.get(region.owner.uid)
            if connection is not None and not connection.is_broken:
                return connection
            device = self._device
            pair = GuardedPair(device.queue_pair(_MOST_WORK))
            bounce = mmap.mmap(-1, _BOUNCE_BYTES)
            address = memory_of(bounce).address
            try:
                about = {**asdict(pair.info), "uid": process.current().node.uid}
                answer = ask_owner(region, "verbs connect", about, deadline)
                pair.connect(QueuePairInfo(**answer))
                keys = device.register(address, _BOUNCE_BYTES)
            except BaseException:
                pair.close()
                raise
            connection = _Connection(pair, bounce, address, keys, threading.Lock())
            self._connections[region.owner.uid] = connection
            return connection

    def _drop_connection(self, uid: Uid, connection: _Connection) -> None:
        with self._lock:
            if self._connections.get(uid) is connection:
                del self._connections[uid]
        connection.close()

    def _keys(self, region: RemoteRegion, deadline: float, *, anew: bool) -> tuple[int, int]:
        """Return the remote keys of a registration and of the owner's table; ``anew`` asks the
        owner again."""
        name = region.table.nonce, region.slot, region.key
        keys = self._remote_keys.get(name)
        if keys is None or anew:
            answer = ask_owner(region, "verbs key", {}, deadline)
            keys = self._remote_keys[name] = answer["rkey"], answer["table"]
        return keys

    def _entry(
        self, connection: _Connection, region: RemoteRegion, rkey: int, deadline: float
    ) -> TableEntry:
        entry = region.table.address + region.slot * ENTRY_BYTES, ENTRY.size
        works = works_of(READ, iter([entry]), connection.address, connection.keys.lkey, rkey)
        self._run(connection, works, deadline)
        return TableEntry._make(ENTRY.unpack_from(connection.bounce, 0))

    def _move(
        self,
        kind: str,
        connection: _Connection,
        rkey: int,
        theirs: Iterator[Run],
        ours: Sequence[Run],
        deadline: float,
    ) -> None:
        """Copy between runs of this process and of the owner.

        A single large run is registered for the copy. Other runs are copied through the memory that
        the connection has registered.
        """
        total = sum(length for _, length in ours)
        if len(ours) == 1 and total > _SMALL_BYTES:
            try:
                keys = self._device.register(ours[0][0], total)
            except VerbsFailed:
                pass  # No more memory may be locked.
            else:
                try:
                    works = works_of(kind, theirs, ours[0][0], keys.lkey, rkey)
                    self._run(connection, works, deadline)
                finally:
                    if not connection.is_broken:
                        keys.close()
                return
        local_runs, remote_runs = RunReader(ours), RunReader(theirs)
        while total:
            size = min(total, _BOUNCE_BYTES)
            total -= size
            local = local_runs.take(size)
            if kind == WRITE:
                copy_runs(local, [(connection.address, size)])
            works = works_of(
                kind, iter(remote_runs.take(size)), connection.address, connection.keys.lkey, rkey
            )
            self._run(connection, works, deadline)
            if kind == READ:
                copy_runs([(connection.address, size)], local)

    def _run(self, connection: _Connection, works: Iterator[WorkRequest], deadline: float) -> None:
        """Post all work requests, a few at a time, and wait for them.

        Raises ``VerbsFailed`` if one fails or the connection is closed, ``TimeoutError`` at the
        deadline.
        """
        num_posted = num_done = spins = 0
        following = next(works, None)
        while following is not None or num_done < num_posted:
            while following is not None and num_posted - num_done < _MOST_WORK:
                connection.pair.post(following)
                num_posted += 1
                following = next(works, None)
            completions = connection.pair.poll(_MOST_WORK)
            for _, status in completions:
                if status != SUCCESS:
                    raise VerbsFailed(f"a work request ended with status {status}")
            num_done += len(completions)
            spins = 0 if completions else spins + 1
            if spins > _SPINS:
                if connection.is_broken:
                    raise VerbsFailed("the connection was closed")
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        "the RDMA device has not answered in time: try again, or give a longer "
                        "timeout="
                    )
                time.sleep(_PAUSE_SECONDS)

    # The side of an owner, on threads of its own.

    def _on_connect(self, about: dict[str, Any]) -> dict[str, Any]:
        remote = QueuePairInfo(
            about["number"], about["psn"], about["gid"], about["lid"], about["mtu"]
        )
        pair = GuardedPair(self._device.queue_pair(_MOST_WORK))
        pair.connect(remote)
        with self._lock:
            older = self._served.pop(about["uid"], None)
            self._served[about["uid"]] = pair
        if older is not None:
            older.close()
        return asdict(pair.info)

    def _on_key(self, about: dict[str, Any]) -> dict[str, Any]:
        registration = registry().find_entry(about["slot"], about["key"])
        with self._lock:
            if self._table_keys is None:
                address = registry().place.address
                size = registry().table.view.nbytes
                self._table_keys = self._device.register(address, size)
            name = registration.slot, registration.key
            keys = self._own_keys.get(name)
            if keys is None:
                memory = registration.life.hold()
                low, size = registration.layout.span()
                address = registration.address + low
                if registration.device == "cpu":
                    keys = self._device.register(address, size)
                else:
                    keys = register_gpu(self._device, address, size)
                del memory
                self._own_keys[name] = keys
                registration.at_end.append(lambda: self._forget_key(name))
            return {"rkey": keys.rkey, "table": self._table_keys.rkey}

    def _forget_key(self, name: tuple[int, int]) -> None:
        keys = self._own_keys.pop(name, None)
        if keys is not None:
            keys.close()

    def _on_begin(self, about: dict[str, Any]) -> dict[str, Any]:
        slot = registry().find_entry(about["slot"], about["key"]).slot
        fd = registry().table.open()
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            tables.use(fd, slot, deadline)
            tables.begin(fd, slot, deadline)
        except BaseException:
            os.close(fd)
            raise
        with self._lock:
            self._next_write += 1
            self._writing[about["sender"], self._next_write] = fd, slot
            return {"number": self._next_write}

    def _on_end(self, about: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            fd, slot = self._writing.pop((about["sender"], about["number"]), (-1, 0))
        if fd >= 0:
            try:
                if about["done"]:
                    tables.end(fd, slot, time.monotonic() + _LOCK_SECONDS)
            finally:
                tables.stop_using(fd, slot)
        return {}

    def forget(self, uid: Uid, how: Gone) -> None:
        """Close the connections with a process that is gone.

        The memory that it was writing is released.
        """
        with self._lock:
            connection, pair = self._connections.pop(uid, None), self._served.pop(uid, None)
            writing = [key for key in self._writing if key[0] == uid]
            ended = [self._writing.pop(key) for key in writing]
        for fd, slot in ended:
            tables.stop_using(fd, slot)
        for end in (connection, pair):
            if end is not None:
                end.close()

    def close(self) -> None:
        """Close all connections, registrations and the device."""
        with self._lock:
            connections = [*self._connections.values()]
            keys = [*self._own_keys.values(), *filter(None, [self._table_keys])]
            device, self._opened = self._opened, None
            self._own_keys.clear()
            self._table_keys = None
        for uid in {*self._connections, *self._served}:
            self.forget(uid, Gone.LEFT)
        closes = [*(connection.close for connection in connections), *(key.close for key in keys)]
        for close in (*closes, *([device.close] if device else [])):
            with contextlib.suppress(VerbsFailed, OSError):  # Of a device that is gone.
                close()
