"""Two meshes whose actors call each other, rank by rank, without the client in between.

Run it with `python examples/actors/ping_pong.py`, or with `older` for the older spelling.
"""

import asyncio
import sys

from monarch.actor import Actor, context, current_rank, endpoint, proc_mesh, this_host


class Player(Actor):
    def __init__(self, name: str):
        self.name = name
        self.rank = current_rank()
        self.partner = None

    @endpoint
    async def meet(self, others) -> str:
        """Remember the actor of the other mesh that has my rank."""
        self.partner = others.slice(**self.rank)
        return await self.partner.greet.call_one(f"{self.name} {self.rank.rank}")

    @endpoint
    async def greet(self, who: str) -> str:
        return f"{self.name} {self.rank.rank} says hello to {who}"

    @endpoint
    async def play(self, num_hits: int) -> int:
        """Play the ball back and forth with the partner until no hits are left.

        Returns how many times this player has hit it.
        """
        mine = 0
        while num_hits > 0:
            mine += 1
            num_hits = await self.partner.hit_back.call_one(num_hits - 1)
        return mine

    @endpoint
    async def hit_back(self, num_hits: int) -> int:
        assert context().actor_instance.rank == self.rank
        return max(0, num_hits - 1)


def current() -> None:
    host = this_host()
    pings = host.spawn_procs({"gpus": 2}).spawn("pings", Player, "ping")
    pongs = host.spawn_procs({"gpus": 2}).spawn("pongs", Player, "pong")
    for greeting in pings.meet.call(pongs).get().values():
        print(greeting)
    print("hits on our side:", pings.play.call(10).get().values())


async def older() -> None:
    ping_procs, pong_procs = await proc_mesh(gpus=2), await proc_mesh(gpus=2)
    pings = await ping_procs.spawn("pings", Player, "ping")
    pongs = await pong_procs.spawn("pongs", Player, "pong")
    for _, greeting in await pings.meet.call(pongs):
        print(greeting)
    print("hits on our side:", [hits for _, hits in await pings.play.call(10)])


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
