"""Runs batches of records in order. A failed value is a poison: operations that use it fail too."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from monarch.tensors.core.batch import ALL_STREAMS, FREE, WireSegment, decode
from monarch.tensors.core.log import OpFailure
from monarch.tensors.worker.definitions import Operation, WorkerDefinitions
from monarch.tensors.worker.lanes import Device, StreamLane, drain_all, have_come_to_rest
from monarch.tensors.worker.slots import POISON, Poison, Poisoned

_MAIN = 0


class Executor:
    """The values of one worker, and the failures that the controller has not settled yet."""

    def __init__(self, rank: int, definitions: WorkerDefinitions, device: Device) -> None:
        #: The values by reference; a failed value is ``POISON``.
        self.values: dict[int, Any] = {}
        self.definitions = definitions
        self._rank = rank
        self._device = device
        #: The failures of operations that the controller may not know yet; under the lock.
        self._failures: list[OpFailure] = []
        self._lock = threading.Lock()
        #: The lanes by stream; empty while the worker's own thread does all the work.
        self._lanes: dict[int, StreamLane] = {}
        #: Notified when a lane has advanced.
        self._moved = threading.Condition()

    def run(self, batch: int, settled: int, data: Any) -> None:
        """Run one batch. Failures up to batch ``settled`` are forgotten, since the controller knows
        them."""
        with self._lock:
            self._failures = [failure for failure in self._failures if failure.batch > settled]
        definitions, segments = decode(data)
        for number, definition in definitions:
            self.definitions.define(number, definition)
        if self.definitions.outdated:
            self.drain()  # Earlier batches may still use them.
            self.definitions.forget()
        own = [
            (index, segment)
            for index, segment in enumerate(segments)
            if self.definitions.is_in(segment.mesh)
        ]
        for _, segment in own:
            if segment.stream not in (ALL_STREAMS, _MAIN) and not self._lanes:
                # From now on the main stream has a thread too: it may wait for another stream.
                self._lane(_MAIN)
        for index, segment in own:
            self._dispatch(batch, index, segment)

    def failures(self) -> list[OpFailure]:
        """Wait until all batches are done, and return the failures of this worker."""
        self.drain()
        with self._lock:
            return list(self._failures)

    def drain(self) -> None:
        if self._lanes:
            drain_all(self._lanes.values(), self._moved)
            for lane in self._lanes.values():
                self._device.put_before_own(lane.stream)  # A drained lane has only issued its work.

    def come_to_rest(self) -> None:
        """Wait until all lanes are idle, or one has ended with an error.

        Such an error is not raised here; the next ``drain`` raises it.
        """
        with self._moved:
            self._moved.wait_for(lambda: have_come_to_rest(self._lanes.values()))

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _dispatch(self, batch: int, index: int, segment: WireSegment) -> None:
        stream = segment.stream
        if stream == ALL_STREAMS:
            self.drain()
        if stream == ALL_STREAMS or not self._lanes:
            self._segment(batch, index, segment)
            for lane in self._lanes.values():
                self._device.put_after_own(lane.stream)
            return
        self._lane(stream).put(lambda: self._segment(batch, index, segment))

    def _lane(self, stream: int) -> StreamLane:
        lane = self._lanes.get(stream)
        if lane is None:
            on = self._device.stream() if stream != _MAIN else self._device.own()
            lane = self._lanes[stream] = StreamLane(
                f"tensor-stream-{stream}", self._device, on, self._moved
            )
        return lane

    def _segment(self, batch: int, index: int, segment: WireSegment) -> None:
        r, v, s = segment.records, self.values, iter(segment.scalars)
        operations = self.definitions.operations
        i, end = 0, len(r)
        while i < end:
            try:
                while i < end:
                    number = r[i]
                    if number == FREE:
                        num = r[i + 1]
                        for ref in r[i + 2 : i + 2 + num]:
                            v.pop(ref, None)
                        i += 2 + num
                    else:
                        i = operations[number].run(v, r, i, s)
            except Exception as error:
                i = self._failed((batch, index), i, r, error)

    def _failed(self, where: tuple[int, int], i: int, r: Any, error: Exception) -> int:
        operation = self.definitions.operations[r[i]]
        values = self.values
        num_in = operation.spec.num_in
        used = r[i + 2 : i + 2 + num_in]
        is_poisoned = any(type(values.get(ref)) is Poison for ref in used)
        trace = error.__traceback__
        program_trace = trace.tb_next if trace is not None else None
        if not is_poisoned:
            # The frames below the generated line are the user's.
            users = program_trace.tb_next if program_trace is not None else None
            text = "".join(traceback.format_exception(type(error), error, users))
            with self._lock:
                self._failures.append(OpFailure(*where, i, self._rank, text))
        line = program_trace.tb_lineno if program_trace is not None else 0
        self._stand_in(operation, line, isinstance(error, Poisoned))
        for ref in range(r[i + 1], r[i + 1] + operation.num_stored):
            values[ref] = POISON
        return i + 2 + num_in

    def _stand_in(self, operation: Operation, line: int, is_poisoned: bool) -> None:
        """Take part in the collectives that a failed operation has not reached.

        The other ranks wait in these collectives. ``line`` is where the operation's program has
        failed; ``is_poisoned`` means that it failed since an input was of a failed operation.
        """
        step = operation.program.step_at(line)
        for at, act in operation.stand_ins:
            # A collective whose input was poisoned has not begun; one that raised itself has.
            if at > step or (at == step and is_poisoned):
                try:
                    act()
                except Exception:
                    return  # The other ranks have ended: nobody waits.
