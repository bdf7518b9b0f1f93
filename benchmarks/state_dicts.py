"""Times state dicts by one-sided memory beside what else brings them; prints JSON lines.

    python benchmarks/state_dicts.py [weights] [heal]

Each figure is taken in turns with what it is compared to, so that both meet the same load, as in
`rdma.py`.
"""

import statistics
import sys

from rdma import ROUNDS, emit, seconds

from monarch.actor import Actor, endpoint, this_host

NUM_TENSORS = 200
ROWS, COLUMNS = 1024, 640  # of four bytes: 500 MiB in all


class Rank(Actor):
    """A rank of the benchmark.

    Ranks 0 and 1 train, with shards of rows; ranks 2 to 5 read, with shards of columns and rows.
    """

    def __init__(self) -> None:
        from monarch.rdma import SharedStateDict

        self.shared = SharedStateDict("weights")

    @endpoint
    def set_up(self) -> int:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.trainers, self.readers = dist.new_group([0, 1]), dist.new_group([0, 2, 3, 4, 5])
        mesh = DeviceMesh("cpu", [0, 1])
        readers = DeviceMesh("cpu", [[2, 3], [4, 5]])
        names = [f"layer{number}.weight" for number in range(NUM_TENSORS)]
        if self.rank < 2:
            local = [torch.randn(ROWS // 2, COLUMNS) for _ in names]
            self.state = {
                name: DTensor.from_local(one, mesh, [Shard(0)])
                for name, one in zip(names, local, strict=True)
            }
        else:
            local = [torch.zeros(ROWS // 2, COLUMNS // 2) for _ in names]
            self.state = {
                name: DTensor.from_local(one, readers, [Shard(1), Shard(0)])
                for name, one in zip(names, local, strict=True)
            }
        return self.rank

    @endpoint
    def publish(self) -> int:
        return self.shared.publish(self.state, rank=self.rank, num_ranks=2).get()

    @endpoint
    def fetch(self, version: int) -> int:
        return self.shared.fetch(self.state, version=version).get()

    @endpoint
    def gather_and_broadcast(self) -> None:
        """Bring the weights to the readers without ``SharedStateDict``.

        The trainers gather each tensor and broadcast all of it; each reader cuts out its shard.
        """
        import torch
        import torch.distributed as dist

        whole = torch.empty(ROWS, COLUMNS)
        halves = list(whole.chunk(2))
        for tensor in self.state.values():
            local = tensor.to_local()
            if self.rank < 2:
                dist.all_gather(halves, local, group=self.trainers)
            if self.rank != 1:
                dist.broadcast(whole, 0, group=self.readers)
            if self.rank >= 2:
                column, row = divmod(self.rank - 2, 2)
                local.copy_(whole.chunk(2, 0)[row].chunk(2, 1)[column])


def weights() -> None:
    """Measure a state dict of 200 tensors and 500 MiB, from two FSDP ranks to four readers."""
    from monarch.spmd import setup_torch_elastic_env

    procs = this_host().spawn_procs({"gpus": 6}, preload=["torch"])
    setup_torch_elastic_env(procs)
    ranks = procs.spawn("ranks", Rank)
    ranks.set_up.call().get()
    trainers, readers = ranks.slice(gpus=slice(0, 2)), ranks.slice(gpus=slice(2, 6))
    version = 0

    def follow() -> None:
        nonlocal version
        trainers.publish.call().get()
        version += 1
        readers.fetch.call(version).get()

    follow(), follow(), ranks.gather_and_broadcast.call().get()
    ours, theirs = [], []
    for _ in range(5):
        ours.append(seconds(follow))
        theirs.append(seconds(lambda: ranks.gather_and_broadcast.call().get()))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    emit("weights.publish_and_fetch", statistics.median(ours), "s", n=5)
    emit("weights.gather_and_broadcast", statistics.median(theirs), "s", n=5)
    emit("weights.ratio", ratio, "of gather and broadcast")
    procs.stop().get()


HEALED = {f"t{number}": (1024, 768) for number in range(66)}  # 198 MiB


class Replica(Actor):
    """Serves a state to heal from, and heals from another's."""

    def __init__(self) -> None:
        import datetime

        import torch

        from monarch_recipes.replicas.torchft_cures import ReachableTransport, silence_logs

        silence_logs()
        torch.set_num_threads(1)
        self.timeout = datetime.timedelta(seconds=60)
        self.transport = ReachableTransport(self.timeout, "127.0.0.1")
        self.state = {name: torch.randn(shape) for name, shape in HEALED.items()}

    @endpoint
    def serve(self, step: int) -> tuple[str, float]:
        """Offer the state to another group; return its address, and the seconds that this took."""
        self.transport.disallow_checkpoint()
        took = seconds(lambda: self.transport.send_checkpoint([1], step, self.state, self.timeout))
        return self.transport.metadata(), took

    @endpoint
    def heal(self, place: str, step: int, by_http: bool) -> float:
        from torchft.checkpointing import HTTPTransport

        kind = HTTPTransport if by_http else type(self.transport)
        return seconds(lambda: kind.recv_checkpoint(self.transport, 0, place, step, self.timeout))


def heal() -> None:
    """Measure how a group heals 198 MiB from another: from memory, beside TorchFT's own HTTP."""
    procs = this_host().spawn_procs({"gpus": 2}, preload=["torch", "torchft"])
    group = procs.spawn("heal", Replica)
    donor, joiner = group.slice(gpus=0), group.slice(gpus=1)
    ours, theirs = [], []
    for step in range(ROUNDS):
        place, took = donor.serve.call_one(step).get()
        ours.append(took + joiner.heal.call_one(place, step, False).get())
        theirs.append(joiner.heal.call_one(place, step, True).get())
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    emit("heal.from_memory", statistics.median(ours), "s", n=ROUNDS)
    emit("heal.http", statistics.median(theirs), "s", n=ROUNDS)
    emit("heal.ratio", ratio, "of HTTP")
    procs.stop().get()


PARTS = {one.__name__: one for one in (weights, heal)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
