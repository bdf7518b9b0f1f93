"""Parts of a mesh: by position, by range, and under other names.

Run it with `python examples/actors/slices.py`, or with `older` for the older spelling.
"""

import asyncio
import sys

from monarch.actor import Actor, context, current_rank, endpoint, proc_mesh, this_host


class Worker(Actor):
    @endpoint
    def where(self) -> str:
        """Return the rank in the part that was called, and the rank at the spawn."""
        return f"{current_rank().rank} ({context().actor_instance.rank.rank})"


def parts(workers) -> dict:
    return {
        "one": workers.slice(hosts=1, gpus=2),
        "a host": workers.slice(hosts=1),
        "every other": workers.slice(gpus=slice(0, 4, 2)),
        "in a row": workers.flatten("rank"),
        "in pairs": workers.split(gpus=("pair", "half"), half=2).slice(half=0),
        "renamed": workers.rename(hosts="dp", gpus="tp").slice(dp=0, tp=slice(1, 3)),
    }


def current() -> None:
    workers = this_host().spawn_procs({"hosts": 2, "gpus": 4}).spawn("workers", Worker)
    for name, part in parts(workers).items():
        print(f"{name:<12} {part.extent!s:<22} {', '.join(part.where.call().get().values())}")


async def older() -> None:
    procs = await proc_mesh(hosts=2, gpus=4)
    workers = await procs.spawn("workers", Worker)
    for name, part in parts(workers).items():
        answers = [answer for _, answer in await part.where.call()]
        print(f"{name:<12} {part.extent!s:<22} {', '.join(answers)}")


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
