"""A backend for verl's planned WorkerGroup runtime, in outline: `python examples/verl_backend.py`.

verl's RFC (verl-project/verl, issue 7839) splits its control plane from Ray: a runtime gives pools
of processes, groups of workers on them, calls with a deadline, and an object store. Its names are
used here, with a stub for a worker; what each comes to on this side is what the file shows. It is
no part of verl, whose interface is not merged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from monarch.actor import (
    Actor,
    HostMesh,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    this_host,
)


class Container(Actor):
    """Makes the worker in its process, and calls its methods by name."""

    def __init__(self, make: Callable[[], Any]):
        self.worker = make()

    @endpoint
    def call(self, method: str, shards: list[tuple[Any, ...]]) -> Any:
        return getattr(self.worker, method)(*shards[current_rank().rank % len(shards)])


class Store(Actor):
    """Keeps objects by name, for all groups of workers.

    Large tensors should be in RDMA buffers or torchstore, not here.
    """

    def __init__(self):
        self.objects: dict[str, Any] = {}

    @endpoint
    def put(self, name: str, value: Any) -> None:
        self.objects[name] = value

    @endpoint
    def get(self, name: str) -> Any:
        return self.objects[name]


class RemoteCall:
    """A call in progress. Several callers may wait for its result, each with a timeout."""

    def __init__(self, future: Any, seconds: float):
        self._future = future
        self._deadline = time.monotonic() + seconds  # of the call, from its beginning

    def result(self, timeout: float | None = None) -> list[Any]:
        seconds = max(0.0, self._deadline - time.monotonic())
        if timeout is not None:
            seconds = min(timeout, seconds)
        return list(self._future.get(seconds).values())

    def done(self) -> bool:
        return self._future.done()


class RankView:
    """Calls to some ranks of a group, whose processes ``WorkerGroup`` owns."""

    def __init__(self, actors: Any, num: int):
        self._actors = actors
        self.world_size = num

    def slice(self, start: int, size: int) -> RankView:
        return RankView(self._actors.slice(rank=slice(start, start + size)), size)

    def rank(self, number: int) -> RankView:
        return self.slice(number, 1)

    def execute(self, method: str, *args: Any, seconds: float = 60) -> RemoteCall:
        """Call a method of all ranks with the same arguments."""
        return RemoteCall(self._actors.call.call(method, [args]), seconds)

    def dispatch(self, method: str, shards: Sequence[Any], seconds: float = 60) -> RemoteCall:
        """Call a method of all ranks, each with arguments of its own."""
        return RemoteCall(self._actors.call.call(method, [(shard,) for shard in shards]), seconds)


class WorkerGroup(RankView):
    """All ranks of a group; it owns their processes, and ends them in ``close``."""

    def __init__(self, hosts: HostMesh, per_host: int, make: Callable[[], Any]):
        self._procs = hosts.spawn_procs({"gpus": per_host})
        actors = self._procs.spawn("workers", Container, make).flatten("rank")
        super().__init__(actors, actors.size())

    def close(self) -> None:
        self._procs.stop().get()


class Runtime:
    """The backend in one process. `hosts` are those of a job: ProcessJob, SlurmJob, ..."""

    def __init__(self, hosts: HostMesh):
        self._hosts = hosts
        self._groups: list[WorkerGroup] = []
        self.store = get_or_spawn_controller("objects", Store).get()

    def create_worker_group(self, make: Callable[[], Any], processes_per_node: int) -> WorkerGroup:
        self._groups.append(WorkerGroup(self._hosts, processes_per_node, make))
        return self._groups[-1]

    def close(self) -> None:
        for group in self._groups:
            group.close()


class StubWorker:
    """Replaces verl's actor, critic and rollout workers."""

    def __init__(self, scale: float):
        self.scale = scale

    def generate(self, prompts: list[str]) -> list[str]:
        return [prompt + "!" * len(prompt) for prompt in prompts]

    def update(self, rewards: list[float]) -> float:
        self.scale += sum(rewards) / len(rewards)
        return self.scale

    def think(self, seconds: float) -> str:
        time.sleep(seconds)
        return "thought"


def main() -> None:
    runtime = Runtime(this_host())
    rollout = runtime.create_worker_group(lambda: StubWorker(0.0), processes_per_node=2)
    actor = runtime.create_worker_group(lambda: StubWorker(1.0), processes_per_node=2)

    texts = rollout.dispatch("generate", [["a", "bb"], ["ccc"]]).result()
    print("generated:", texts)
    runtime.store.put.call_one("texts", texts).get()
    rewards = [[float(len(text)) for text in part] for part in texts]
    print("updated:", actor.dispatch("update", rewards).result())
    print("rank 1 alone:", actor.rank(1).execute("update", [0.0]).result())
    print("kept:", runtime.store.get.call_one("texts").get() == texts)

    slow = rollout.execute("think", 0.3)
    try:
        slow.result(timeout=0.01)
    except TimeoutError:
        print("not there yet; later:", slow.result())
    runtime.close()


if __name__ == "__main__":
    main()
