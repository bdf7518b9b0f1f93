"""What an actor prints shows up here, with its name and rank.

Run it with `python examples/actors/toy_actors.py`, or with `older` for the older spelling.
"""

import asyncio
import sys

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, proc_mesh, this_host

NUM_ACTORS = 4


class ToyActor(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    async def hello_world(self, message: str) -> None:
        print(f"I am {self.rank}, and was told: {message}")


def current() -> None:
    toys = this_host().spawn_procs({"gpus": NUM_ACTORS}).spawn("toys", ToyActor)
    toys.hello_world.call("hey there, all of you").get()


async def make_toys() -> tuple[ToyActor, ProcMesh]:
    procs = proc_mesh(gpus=NUM_ACTORS)
    toys = await procs.spawn("toys", ToyActor)
    return toys, procs


async def older() -> None:
    toys, procs = await make_toys()
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=None)
    await toys.hello_world.call("hey there, all of you")
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
