"""torch.distributed on a mesh: two ranks, and an all-reduce between them, on the CPU.

Run it with `python examples/actors/distributed.py`, or with `older` for the older spelling.
"""

import asyncio
import sys

from monarch.actor import Actor, current_rank, endpoint, proc_mesh, this_host
from monarch.spmd import setup_torch_elastic_env
from monarch.utils import setup_env_for_distributed


class Reducer(Actor):
    @endpoint
    def reduce(self) -> tuple[int, float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.tensor(1.0 + current_rank().rank)
        dist.all_reduce(value)
        answer = dist.get_world_size(), value.item()
        dist.destroy_process_group()
        return answer


def current() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, preload=["torch"])
    setup_torch_elastic_env(procs)
    print(procs.spawn("reducers", Reducer).reduce.call().get().values())


async def older() -> None:
    procs = await proc_mesh(gpus=2)
    await setup_env_for_distributed(procs)
    reducers = await procs.spawn("reducers", Reducer)
    print([answer for _, answer in await reducers.reduce.call()])


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
