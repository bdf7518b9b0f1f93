"""What workers ask of CUDA and NCCL, on fakes that know what waits for what: it was not run on a
GPU."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from monarch.tensors.core.batch import ALL_STREAMS, EVERYBODY, RecordSegment, encode
from monarch.tensors.core.specs import CallSpec
from monarch.tensors.worker import slots
from monarch.tensors.worker.collectives import Passage, Reduction, TensorLooks
from monarch.tensors.worker.definitions import Operation, WorkerDefinitions
from monarch.tensors.worker.executor import Executor
from monarch.tensors.worker.groups import ProcessGroups
from monarch.tensors.worker.lanes import Cuda
from tests.tools.test_tools_backends import use_gpus

SIDE = 1


class FakeStream:
    """Knows all that is done before what it is given next."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.done: set[str] = set()

    def wait_event(self, event: FakeEvent) -> None:
        self.done |= event.done

    def wait_stream(self, other: FakeStream) -> None:
        self.done |= other.done


class FakeEvent:
    def __init__(self) -> None:
        self.done: set[str] = set()

    def record(self, stream: FakeStream) -> None:
        self.done = set(stream.done)


class FakeTensor:
    is_cuda = True

    def __init__(self) -> None:
        self.kept: list[FakeStream] = []

    def record_stream(self, stream: FakeStream) -> None:
        self.kept.append(stream)


class FakeCuda:
    """What is used of torch.cuda, as of two devices. Device and stream are a thread's own."""

    Event = FakeEvent

    def __init__(self) -> None:
        self._threads = threading.local()
        self._own = [FakeStream(0), FakeStream(1)]

    def set_device(self, device: int) -> None:
        self._threads.device = device

    def default_stream(self) -> FakeStream:
        return self._own[getattr(self._threads, "device", 0)]

    def current_stream(self) -> FakeStream:
        return getattr(self._threads, "stream", None) or self.default_stream()

    def Stream(self) -> FakeStream:
        return FakeStream(self.default_stream().device)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream | None) -> Iterator[None]:
        if stream is not None:
            self._threads.stream = stream
            self._threads.device = stream.device
        yield


class OnFake:
    """An executor of rank 1, whose device is the second one."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.cuda.set_device(1)
        device = Cuda(self.cuda)
        self.definitions = WorkerDefinitions(1, 2, ProcessGroups(1, 2), device)
        self.executor = Executor(1, self.definitions, device)
        self.found: dict[str, set[str]] = {}
        self._num = 0

    def queue(self, stream: int, name: str, inputs: list[int] | None = None) -> int:
        """Have ``name`` done in a stream; the reference of its result."""
        self._num += 1

        def work(*values: Any) -> FakeTensor:
            now = self.cuda.current_stream()
            assert now.device == 1
            self.found[name] = set(now.done)
            now.done.add(name)
            return FakeTensor()

        inputs = inputs or []
        spec = CallSpec([("o", n) for n in range(len(inputs))], [], len(inputs), 0, [()])
        self.definitions.operations[self._num] = Operation(work, spec)
        self.record(stream, self._num, self._num, inputs)
        return self._num

    def builtin(self, stream: int, what: tuple[Any, ...], inputs: list[int], ticket: int) -> int:
        self._num += 1
        data = pickle.dumps(((len(inputs), 0, 1), cloudpickle.dumps(what)))
        self.definitions.define(self._num, data)
        self.record(stream, self._num, self._num, inputs, ticket)
        return self._num

    def record(self, stream: int, op: int, ref: int, inputs: list[int], *scalars: Any) -> None:
        segment = RecordSegment(EVERYBODY, stream)
        segment.ints, segment.scalars = [op, ref, *inputs], list(scalars)
        self.executor.run(self._num, -1, encode([], [segment]))

    def done_on_own(self) -> set[str]:
        return self.cuda.default_stream().done


@pytest.fixture
def fake() -> Iterator[OnFake]:
    made = OnFake()
    yield made
    assert made.executor.failures() == []
    made.executor.close()


def test_a_fetch_waits_for_all_streams_of_the_device(fake: OnFake) -> None:
    fake.queue(0, "before")
    fake.queue(SIDE, "beside")
    fake.queue(0, "after")  # By the thread that the main stream has got; on this rank's device.
    fake.executor.failures()
    assert fake.done_on_own() == {"before", "beside", "after"}


def test_a_recording_of_several_streams_is_in_the_order_of_all(fake: OnFake) -> None:
    fake.queue(SIDE, "first")
    fake.queue(ALL_STREAMS, "recording")
    fake.queue(SIDE, "last")
    fake.executor.drain()
    assert "first" in fake.found["recording"]
    assert "recording" in fake.found["last"]


def test_a_tensor_passes_to_another_stream_with_an_event(fake: OnFake) -> None:
    made = fake.queue(0, "made")
    fake.builtin(0, ("hand",), [made], ticket=-1)
    taken = fake.builtin(SIDE, ("take",), [], ticket=-1)
    fake.queue(SIDE, "used", [taken])
    fake.executor.drain()
    assert "made" in fake.found["used"]
    # Its memory is not another's before the second stream is done.
    assert len(fake.executor.values[taken].kept) == 1


def test_actors_work_on_the_own_stream_of_the_device(fake: OnFake) -> None:
    """What is lent to one is ready there, and comes back when that is done."""
    made = fake.queue(SIDE, "made")
    fake.builtin(SIDE, ("lend", (1,), False), [made], ticket=-1)
    lent = slots.take(-1)
    assert "made" in fake.done_on_own()
    assert lent.kept == [fake.cuda.default_stream()]
    fake.done_on_own().add("by the actor")
    slots.put(-2, None)
    fake.builtin(SIDE, ("await_actor", (1,)), [], ticket=-2)
    fake.queue(SIDE, "next")
    fake.executor.drain()
    assert "by the actor" in fake.found["next"]


def test_what_an_actor_returns_is_ready_in_the_stream_that_takes_it(fake: OnFake) -> None:
    fake.done_on_own().add("by the actor")
    slots.put(-1, (torch.ones(1), None))
    fake.builtin(SIDE, ("results", [()], 0), [], ticket=-1)
    fake.queue(SIDE, "next")
    fake.executor.drain()
    assert "by the actor" in fake.found["next"]


class FakeGroups:
    """Groups by their names."""

    go_by_host = False

    def make(self, all_ranks: Any, use: Any) -> None:
        self.made: set[Any] = getattr(self, "made", set()) | {(ranks, use) for ranks in all_ranks}

    def of(self, ranks: Any, use: Any) -> Any:
        assert (ranks, use) in self.made
        return ranks, use


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_sends_by_nccl_have_groups_of_their_own(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """It knows no tags: what two streams send, and what goes there and back, must not meet."""
    told: list[Any] = []
    done = type("Work", (), {"is_completed": lambda self: True, "wait": lambda self: None})()
    monkeypatch.setattr(
        dist, "isend", lambda t, to, group, tag: told.append(("to", to, group, tag)) or done
    )
    monkeypatch.setattr(
        dist, "recv", lambda t, src, group, tag: told.append(("from", src, group, tag))
    )
    groups: Any = FakeGroups()
    groups.make([], None)
    definitions = WorkerDefinitions(0, 2, groups, Cuda(FakeCuda()))
    real_empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device, **kw: real_empty(*size, **kw))
    for stream in (0, SIDE):
        what = ("passage", ((0, 1), (1, 0)), stream, ((2,), torch.float32, device))
        definitions.define(stream, pickle.dumps(((1, 1, 0), cloudpickle.dumps(what))))
        definitions.operations[stream].op[0](torch.ones(2))
    assert [(way, rank) for way, rank, _, _ in told] == [("to", 1), ("from", 1)] * 2
    used = [group for _, _, group, _ in told]
    if device == "cpu":
        assert used == [None] * 4
        assert [tag for *_, tag in told] == [0, 0, SIDE, SIDE]
    else:
        assert len(set(used)) == 4
        assert all(ranks == (0, 1) for ranks, _ in used)


@pytest.mark.parametrize(("has_gpu", "backend"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_collectives_are_by_nccl_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, backend: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    use_gpus(monkeypatch, [1] if has_gpu else [])
    monkeypatch.setattr(dist, "TCPStore", lambda *place, **how: dist.HashStore())
    monkeypatch.setattr(
        dist, "init_process_group", lambda name, **how: asked.append((name, how["rank"]))
    )
    ProcessGroups(0, 1).meet("localhost", 1)
    assert asked == [(backend, 0)]


class OnOneGpu:
    """A tensor of a GPU, as far as it goes by the host's memory: copies there and back are told."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.device = "cuda:0"

    def cpu(self) -> torch.Tensor:
        self.told.append("to the host")
        return OfHost.made(self.told)

    def detach(self) -> OnOneGpu:
        return self

    contiguous = clone = detach


class OfHost(torch.Tensor):
    """In the host's memory; on its way to the GPU that is told."""

    told: list[str]

    @classmethod
    def made(cls, told: list[str]) -> OfHost:
        made = torch.ones(2).as_subclass(cls)
        made.told = told
        return made

    def clone(self, **how: Any) -> OfHost:  # type: ignore[override]
        return self.made(self.told)

    def to(self, device: Any, *rest: Any, **more: Any) -> Any:  # type: ignore[override]
        if str(device) == "cuda:0":
            self.told.append("to the GPU")
        return self


def test_what_is_on_a_gpu_that_workers_share_travels_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gloo reduces what is on GPUs, and neither sends nor exchanges it."""
    told: list[str] = []
    sent: list[torch.Tensor] = []
    done = type("Work", (), {"is_completed": lambda self: True, "wait": lambda self: None})()
    monkeypatch.setattr(dist, "isend", lambda t, *place, **how: sent.append(t) or done)
    monkeypatch.setattr(dist, "recv", lambda t, *place, **how: told.append("received"))
    made = OfHost.made(told)
    monkeypatch.setattr(torch, "empty", lambda *size, device, **kw: {"cpu": made}[device])
    looks = TensorLooks((2,), torch.float32, "cuda:0")
    passage = Passage([(0, 1), (1, 0)], 0, looks, groups={}, pair_groups={}, tag=0, by_host=True)
    passage(OnOneGpu(told))
    assert told == ["to the host", "received", "to the GPU"]
    assert [tensor.device.type for tensor in sent] == ["cpu"]

    told.clear()
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda t, **how: t.mul_(2))
    on_gpu: Any = OnOneGpu(told)
    reduced = Reduction(None, "sum", scatter=False, inplace=False, by_host=True)(on_gpu)
    assert told == ["to the host", "to the GPU"]
    assert reduced.tolist() == [2.0, 2.0]
