"""Times what goes between GPUs beside what bounds it; prints one JSON object a line. Needs a GPU.

    python benchmarks/gpu.py [memory] [weights] [tensors]

The bound of memory and weights is taken in the same run: a copy over a mapping that torch's own
handles made, and a copy to pinned memory. Figures are medians; each is taken in turns with its
bound.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

import monarch
from monarch import inspect
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer, SharedStateDict

MIB = 2**20
ROUNDS = 9


def emit(metric: str, value: float, unit: str, **more: object) -> None:
    line = {"metric": metric, "value": round(value, 4), "unit": unit, **more}
    print(json.dumps({**line, "gpu": torch.cuda.get_device_name()}), flush=True)


def seconds(action: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(metric: str, num_bytes: int, ours: Callable[[], object], bound: Callable[[], object],
            what: str) -> None:  # fmt: skip
    ours(), bound()
    pairs = [(seconds(ours), seconds(bound)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    emit(metric, num_bytes / mine / 1e9, "GB/s", ms=round(mine * 1e3, 3))
    emit(f"{metric}.{what}", num_bytes / other / 1e9, "GB/s", ms=round(other * 1e3, 3))
    ratio = statistics.median(b / a for a, b in pairs)
    emit(f"{metric}.ratio", ratio, f"of {what}")


class Owner(Actor):
    def __init__(self) -> None:
        self.tensors: dict[int, Any] = {}

    @endpoint
    def make(self, count: int, value: float) -> RDMABuffer:
        self.tensors[count] = torch.full((count,), value, device="cuda")
        return RDMABuffer(self.tensors[count])

    @endpoint
    def mean(self, count: int) -> float:
        return float(self.tensors[count].mean())


def hold(queue: Any, done: Any, count: int) -> None:
    """Run in another process: share a tensor by torch alone, and keep it until ``done`` is set."""
    kept = torch.full((count,), 3.0, device="cuda")
    torch.cuda.synchronize()
    queue.put(kept)
    done.wait()


def memory() -> None:
    """Measure copies of another process's memory on the same GPU, to the GPU and to the host."""
    most = 64 * MIB
    spawned = torch.multiprocessing.get_context("spawn")
    queue, done = spawned.Queue(), spawned.Event()
    holder = spawned.Process(target=hold, args=(queue, done, most), daemon=True)
    holder.start()
    theirs = queue.get()
    procs = this_host().spawn_procs({"gpus": 1})
    owner = procs.spawn("owner", Owner)
    for count in (1024, MIB, most):
        size = 4 * count
        name = f"{size // 1024}_KiB" if size < MIB else f"{size // MIB}_MiB"
        buffer = owner.make.call_one(count, 3.0).get()
        here, plain = torch.zeros(count, device="cuda"), torch.zeros(count)
        pinned = torch.zeros(count, pin_memory=True)
        for into in (here, plain, pinned):
            buffer.read_into(into).get()
            assert float(into.mean()) == 3.0
        assert buffer.backend == "cuda_ipc", buffer.backend
        floor, host_floor = theirs[:count], torch.empty(count, pin_memory=True)
        other = torch.empty(count, device="cuda")

        def to_host(into: Any = host_floor, given: Any = floor) -> None:
            into.copy_(given, non_blocking=True)

        def across(into: Any = other, given: Any = floor) -> None:
            into.copy_(given)

        def back(into: Any = floor, given: Any = other) -> None:
            into.copy_(given)

        def read(into: Any, buffer: RDMABuffer = buffer) -> Callable[[], object]:
            return lambda: buffer.read_into(into).get()

        compare(f"gpu.read_{name}", size, read(here), across, "ipc_floor")
        here.fill_(7.0)
        compare(
            f"gpu.write_{name}", size,
            lambda buffer=buffer, here=here: buffer.write_from(here).get(), back, "ipc_floor",
        )  # fmt: skip
        assert owner.mean.call_one(count).get() == 7.0
        compare(f"gpu.read_to_host_{name}", size, read(plain), to_host, "pinned_floor")
        compare(f"gpu.read_to_pinned_{name}", size, read(pinned), to_host, "pinned_floor")
    done.set()
    holder.join()
    procs.stop().get()


SHAPE, NUM_TENSORS = (8192, 4096), 24  # 1.6 GB in bfloat16


def state(value: float) -> dict[str, Any]:
    return {
        f"layer{number}": torch.full(SHAPE, value, device="cuda", dtype=torch.bfloat16)
        for number in range(NUM_TENSORS)
    }


class Trainer(Actor):
    def __init__(self, shared: SharedStateDict) -> None:
        self.shared, self.state = shared, state(0.0)
        shared.prepare(self.state).get()

    @endpoint
    def publish(self, version: int) -> tuple[float, float]:
        """Return the seconds of publishing, and of a copy of the same tensors to pinned memory."""
        for tensor in self.state.values():
            tensor.fill_(version)
        ours = seconds(lambda: self.shared.publish(self.state).get())
        pinned = [torch.empty(SHAPE, dtype=torch.bfloat16, pin_memory=True)]

        def floor() -> None:
            for tensor in self.state.values():
                pinned[0].copy_(tensor, non_blocking=True)

        floor()
        return ours, seconds(floor)


class Reader(Actor):
    def __init__(self, shared: SharedStateDict) -> None:
        self.shared, self.state, self.other = shared, state(-1.0), state(-1.0)

    @endpoint
    def fetch(self, version: int) -> tuple[float, float]:
        """Return the seconds of fetching, and of a copy of the same tensors within the GPU."""
        ours = seconds(lambda: self.shared.fetch(self.state, version=version).get())
        assert {float(one[0, 0]) for one in self.state.values()} == {float(version)}

        def floor() -> None:
            for key, tensor in self.state.items():
                self.other[key].copy_(tensor)

        return ours, seconds(floor)


def weights() -> None:
    """Measure how a state dict of 1.6 GB goes from one process to another on the same GPU."""
    shared = SharedStateDict("weights")
    procs = this_host().spawn_procs({"gpus": 2})
    trainer = procs.slice(gpus=0).spawn("trainer", Trainer, shared)
    reader = procs.slice(gpus=1).spawn("reader", Reader, shared)
    for version in range(1, 6):
        ours, floor = trainer.publish.call_one(version).get()
        emit("weights.publish", ours * 1e3, "ms", version=version, pinned_floor_ms=floor * 1e3,
             times=ours / floor)  # fmt: skip
        ours, floor = reader.fetch.call_one(version).get()
        emit("weights.fetch", ours * 1e3, "ms", version=version, copy_floor_ms=floor * 1e3)
    procs.stop().get()


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, given: Any) -> Any:
        return given + self.layers(self.norm(given))


def step_of(width: int, num_layers: int) -> Callable[[], Any]:
    """Return a function that makes one training step and returns the loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block(width) for _ in range(num_layers)]).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    given = torch.randn(8, 512, width, device="cuda", dtype=torch.bfloat16)

    def step() -> Any:
        loss = (model(given).float() - given.float()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(step: Callable[[], Any], num_steps: int) -> Any:
    """Make ``num_steps`` steps, and return the loss of the last."""
    return [step() for _ in range(num_steps)][-1]


def tensors() -> None:
    """Measure steps by the tensor engine, eager and compiled, beside torch alone."""
    for width, num_layers in ((256, 4), (1024, 12)):
        step = step_of(width, num_layers)
        train(step, 5)
        plain = seconds(lambda step=step: train(step, 50).item())
        procs = this_host().spawn_procs({"gpus": 1})
        with procs.activate():
            step = step_of(width, num_layers)
            compiled = monarch.compile(step)
            for kind, one in (("step", step), ("compiled_step", compiled)):
                inspect(train(one, 5))
                ours = seconds(lambda one=one: inspect(train(one, 50)))
                emit(f"tensors.{kind}_{num_layers}_x_{width}", ours * 20, "ms",
                     plain_ms=plain * 20, ratio=ours / plain)  # fmt: skip
        procs.stop().get()


PARTS = {one.__name__: one for one in (memory, weights, tensors)}

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
