"""The messages of one controller to the workers of one proc mesh, in order."""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import Future
from monarch.errors import SupervisionError
from monarch.tensors.client.remote_exception import exception_of
from monarch.tensors.core.batch import EVERYBODY, Batch, FlushPolicy, encode
from monarch.tensors.core.log import IssueLog
from monarch.tensors.core.templates import Template, TemplateCache
from monarch.tensors.worker.packing import unpacked
from monarch.wire.pickler import dumps

_clients = count(1)
_SETTLE_EVERY = 64
"""After so many batches the client asks the workers for their failures."""

_MOST_UNSETTLED = 4
"""If more such questions have no answer yet, the program waits for the oldest answer."""

_MOST_TEMPLATES = 16_384
_IDLE_SECONDS = 1.0


class HeldOperations:
    """The operations that ``coalescing`` blocks and recordings have not sent yet."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def flat_messages(self) -> dict[int, list[Any]]:
        """Return the operations that have not been sent, by the rank that will run them."""
        client, by_rank = self._client, defaultdict(list)
        ranks = {mesh.number: mesh.processes for mesh in client.everybody._meshes.values()}
        held: list[tuple[int, Any]] = []
        if client.recording is not None:
            held += [(step.mesh, step) for step in client.recording.steps]
        elif client.num_held:
            held += [(s.mesh, op[2].name) for s in client.batch.segments for op in s.ops]
        for mesh, operation in held:
            for rank in ranks[mesh]:
                by_rank[rank].append(operation)
        return dict(by_rank)


class Client:
    """The connection of a controller to the workers of one proc mesh.

    It numbers templates and tensors, gathers records into batches, and records failures.
    """

    def __init__(
        self,
        workers: Any,
        ranks_of_procs: dict[str, int],
        machines: set[str],
        spawn_desk: Callable[[], Any],
    ) -> None:
        #: The mesh of ``TensorWorker`` actors.
        self.workers = workers
        #: The name in texts for people, who may have several meshes.
        self.name = f"mesh {next(_clients)}"
        #: Spawns the ``HandOverDesk`` actors, for ``desk``.
        self._spawn_desk = spawn_desk
        #: The rank of each proc, by its uid.
        self.ranks_of_procs = ranks_of_procs
        self.num_ranks = len(ranks_of_procs)
        self._is_one_machine = len(machines) <= 1
        #: The mesh of all workers, as a ``DeviceMesh``.
        self.everybody: Any = None

        #: The templates of torch's operators and of the user's functions.
        self.cache = TemplateCache(_MOST_TEMPLATES)
        #: The templates of this engine's own operations.
        self.builtins: dict[Any, Template] = {}
        #: Gives out the numbers of definitions.
        self._numbers = count(1)
        #: Definitions that are not sent yet.
        self._definitions: list[tuple[int, bytes]] = []
        #: Templates that the workers are told to forget at the next flush.
        self._forgotten: list[int] = []
        #: Whether the workers have joined torch.distributed.
        self._has_met = False
        #: The process groups that the workers have made, by mesh, dimensions and use.
        self._groups: set[tuple[int, tuple[str, ...], tuple[str, int]]] = set()

        #: Held while the batch is changed or sent: the flusher's thread does it, too.
        self.lock = threading.RLock()
        #: Says when a batch is sent.
        self.policy = FlushPolicy()
        #: The operations that are issued and not sent yet.
        self.batch = Batch()
        #: The next reference to give out.
        self.next_ref = 1
        #: Gives out tickets; they begin at random, since clients may share procs.
        self._tickets = count(uuid.uuid4().int >> 72 << 8)
        #: How many blocks hold messages back.
        self.num_held = 0
        #: The ``Recorder`` while a function is recorded, else ``None``.
        self.recording: Any = None
        #: The released references that are not sent yet, by mesh and stream.
        self.frees: dict[int, dict[int, list[int]]] = {}
        #: How much was sent so far.
        self.num_ops = self.num_batches = self.num_bytes = 0
        #: The thread that sends batches in time; ``None`` while it is idle for long.
        self._flusher: threading.Thread | None = None
        #: Set when a batch has got its first operation, at the time ``_first``.
        self._armed = threading.Event()
        self._first = 0.0

        #: Which references are spoiled by failures.
        self.log = IssueLog()
        #: The questions for failures that have no answer yet, each with its last batch.
        self._unsettled: deque[tuple[int, Future[Any]]] = deque()
        #: Why the workers are gone; each operation raises it.
        self.error: SupervisionError | None = None
        self.is_closed = False

    # Definitions

    def define(self, *definition: Any) -> int:
        """Send a definition, such as a template or a mesh, to the workers; return its number."""
        return self._define(next(self._numbers), None, definition)

    def define_everybody(self, *definition: Any) -> None:
        """Send the definition of the mesh of all workers, whose number is always ``EVERYBODY``."""
        self._define(EVERYBODY, None, definition)

    def define_template(self, template: Template, num_scalars: int, *definition: Any) -> Template:
        counts = (template.num_in, template.num_out, num_scalars)
        template.number = self._define(next(self._numbers), counts, definition)
        return template

    def _define(self, number: int, counts: tuple[int, int, int] | None, definition: Any) -> int:
        # The counts are pickled apart: workers need them if they cannot load the rest.
        data = pickle.dumps((counts, dumps(definition)), 5)
        with self.lock:
            self._definitions.append((number, data))
        return number

    def remember(self, key: Any, template: Template) -> None:
        """Put a template into the cache.

        The workers will forget the templates that the cache drops to make room.
        """
        self._forgotten += [dropped.number for dropped in self.cache.put(key, template)]

    def forget(self, template: Template) -> None:
        """Tell the workers, at a later flush, to forget a template."""
        self._forgotten.append(template.number)

    def meet(self) -> None:
        """Have the workers join torch.distributed, unless they have done so."""
        if self._has_met:
            return
        self._has_met = True
        with _disable_current_modes():
            first = self.workers.flatten("rank").slice(rank=0)
            address = first.listen.call_one(self._is_one_machine).get()
        self.define("meet", *address)

    def have_groups(self, mesh: int, dims: tuple[str, ...], use: tuple[str, int]) -> None:
        """Have the workers make the process groups along dimensions of a mesh, unless they exist.

        ``use`` names who communicates in them, such as the functions of one stream: each ``use``
        has groups of its own.
        """
        self.meet()
        if (mesh, dims, use) not in self._groups:
            self._groups.add((mesh, dims, use))
            self.define("groups", mesh, dims, use)

    @functools.cached_property
    def desk(self) -> Any:
        """Return the ``HandOverDesk`` actors beside the workers, spawned at the first use."""
        with _disable_current_modes():
            return self._spawn_desk()

    def next_ticket(self) -> int:
        """Return an unused ticket: the number of a slot through which a worker passes one value.

        During a recording the ticket is negative, and each replay uses it again.
        """
        return next(self._tickets) if self.recording is None else int(self.recording.next_ticket())

    # Sending

    def arm(self) -> None:
        """Start the timer that sends the batch; called at the batch's first operation."""
        self._first = time.monotonic()
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_in_time, name="monarch-tensor-flusher", daemon=True
            )
            self._flusher.start()
        self._armed.set()

    def _flush_in_time(self) -> None:
        while self._armed.wait(_IDLE_SECONDS) and not self.is_closed:
            self._armed.clear()
            num_before = 0
            while True:
                num = self.batch.num_ops
                seconds = self.policy.seconds_left(self._first, time.monotonic(), num - num_before)
                if seconds == 0.0:
                    break
                num_before = num
                time.sleep(seconds)
            with self.lock:
                if self.num_held == 0 and self.recording is None:
                    try:
                        self.flush()
                    except Exception as error:
                        # The next operation raises it, in the user's thread.
                        self.error = self.error or SupervisionError(str(error))
        with self.lock:
            self._flusher = None
            if self._armed.is_set() and not self.is_closed:
                self.arm()  # Between the last look and the lock.

    def flush(self) -> None:
        """Send the operations, definitions and frees that were issued."""
        with self.lock:
            for mesh, by_stream in self.frees.items():
                for stream, refs in by_stream.items():
                    if refs:
                        self.take_frees(self.batch.segment(mesh, stream).ints, refs)
            if not (self.batch.segments or self._definitions):
                return
            self._send()
            if self._forgotten and self.recording is None:
                forgotten, self._forgotten = self._forgotten, []
                self.define("forget", forgotten)

    def _send(self) -> None:
        definitions, self._definitions = self._definitions, []
        self.num_ops += self.batch.num_ops
        segments = self.batch.take()
        data = encode(definitions, segments)
        number = self.num_batches
        self.num_batches += 1
        self.num_bytes += len(data)
        self.log.sent(number, segments)
        with _disable_current_modes():
            self.workers.run.broadcast(number, self.log.settled, data)
            if self.num_batches % _SETTLE_EVERY == 0:
                self._unsettled.append((number, self.workers.fetch.call((), [])))
            while self._unsettled and (
                len(self._unsettled) > _MOST_UNSETTLED or self._unsettled[0][1].done()
            ):
                upto, answers = self._unsettled.popleft()
                self._settle(upto, answers.get())

    def take_frees(self, ints: list[int], refs: list[int]) -> None:
        """Move the references ``refs`` into a record of ``ints`` that frees them."""
        taken = refs[:]
        del refs[: len(taken)]
        ints += (0, len(taken), *taken)

    @property
    def recorder(self) -> HeldOperations:
        """Return the operations that are not sent yet; upstream Monarch calls them ``recorder``."""
        return HeldOperations(self)

    # Answers

    def fetch(self, ranks: tuple[int, ...], refs: list[int]) -> Future[dict[int, list[Any]]]:
        """Return a future of the values of ``refs`` on ``ranks``, by rank.

        It raises ``RemoteException`` if an operation that any of ``refs`` depends on failed, on any
        rank.
        """
        if self.num_held or self.recording is not None:
            raise NotImplementedError(
                "NYI: fetching results during a coalescing block: fetch after it"
            )
        with self.lock:
            self.check_alive()
            self.flush()
            upto = self.num_batches - 1
            watch = self.log.watch(refs, upto)
            with _disable_current_modes():
                answers = self.workers.fetch.call(ranks, refs)

        def resolve(answered: Any) -> dict[int, list[Any]]:
            with _disable_current_modes():  # The answers are unpickled here.
                self._settle(upto, answered)
                if watch.spoiler is not None:
                    raise exception_of(watch.spoiler)
                # All workers have answered, in the order of ranks.
                answers = answered.values()
                return {rank: [unpacked(value) for value in answers[rank][1]] for rank in ranks}

        return answers.then(resolve)  # type: ignore[no-any-return]

    def _settle(self, upto: int, answered: Any) -> None:
        """Record in the log that all ranks have passed batch ``upto``.

        ``answered`` has their answers, which tell of failures.
        """
        failures = [failure for failed, _ in answered.values() for failure in failed]
        with self.lock:
            self.log.settle(upto, failures)

    def check_alive(self) -> None:
        """Raise the workers' error if they are gone, ``RuntimeError`` after a shutdown."""
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise RuntimeError(
                "this device mesh was shut down with exit(), or its procs were stopped: activate "
                "a mesh of procs that run"
            )

    def shutdown(self) -> None:
        """Wait for everything, and stop the workers. Raises the first failure that the program has
        not seen."""
        if self.is_closed:
            return
        try:
            self.raise_unasked()
        finally:
            self.close()
            if self.error is None:
                with _disable_current_modes():
                    self.workers.stop("the device mesh was shut down").get()

    def raise_unasked(self) -> None:
        """Wait for everything, and raise the first failure that the program has not seen.

        Afterwards all failures before this call count as seen.
        """
        self.settle()
        unasked = [spoiler for spoiler in self.log.unasked if not spoiler.was_raised]
        self.log.unasked = []
        if unasked:
            raise exception_of(unasked[0])

    def settle(self) -> None:
        """Wait until the workers have done all that was issued."""
        with self.lock:
            self.check_alive()
            self.flush()
            upto = self.num_batches - 1
            answers = self.workers.fetch.call((), [])
        with _disable_current_modes():
            self._settle(upto, answers.get())

    def close(self) -> None:
        """Accept no more operations. Any thread may call it, more than once."""
        self.is_closed = True
        self._armed.set()
        flusher = self._flusher
        if flusher is not None and flusher is not threading.current_thread():
            flusher.join()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Send no operations during the ``with`` block, except those that must be sent at once."""
        self.num_held += 1
        try:
            yield
        finally:
            self.num_held -= 1
            if self.num_held == 0 and self.recording is None:
                self.flush()
