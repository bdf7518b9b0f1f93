"""Ask all ranks about their machine and process, and add up the answers.

Run it with `python examples/actors/system_info.py`, or with `older` for the older spelling.
"""

import asyncio
import os
import platform
import resource
import sys

from monarch.actor import Actor, current_rank, endpoint, proc_mesh, this_host

NUM_RANKS = 2


class Inspector(Actor):
    @endpoint
    def system_info(self) -> dict:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "rank": current_rank().rank,
            "process_id": os.getpid(),
            "machine": platform.machine(),
            "master": os.environ.get("MASTER_ADDR"),
            "memory": used.ru_maxrss * 1024,
        }


def report(answers) -> None:
    for point, info in answers:
        print(
            f"rank {point.rank}: pid {info['process_id']}, {info['machine']}, "
            f"master {info['master']}, {info['memory'] / 1e6:.0f} MB"
        )
    total = sum(info["memory"] for _, info in answers)
    print(f"{len(answers)} ranks use {total / 1e6:.0f} MB")


def current() -> None:
    procs = this_host().spawn_procs({"gpus": NUM_RANKS}, env={"MASTER_ADDR": "localhost"})
    report(procs.spawn("inspectors", Inspector).system_info.call().get())


async def older() -> None:
    procs = await proc_mesh(gpus=NUM_RANKS, env={"MASTER_ADDR": "localhost"})
    inspectors = await procs.spawn("inspectors", Inspector)
    report(await inspectors.system_info.call())


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
