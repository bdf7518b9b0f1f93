"""An actor that counts, in four processes. Run it with `python examples/actors/counter.py`.

With the argument `older` it does the same in the spelling of early releases of Monarch.
"""

import asyncio
import sys

from monarch.actor import Actor, endpoint, proc_mesh, this_host


class Counter(Actor):
    def __init__(self, start: int):
        self.value = start

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


def current() -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    counters = procs.spawn("counters", Counter, 10)

    counters.add.broadcast(1)  # all of them; nobody waits
    print("all:", counters.add.call(1).get().values())
    print("one:", counters.slice(gpus=2).add.call_one(5).get())
    print("sum:", sum(answer.get() for answer in counters.add.stream(0)))
    procs.stop().get()


async def older() -> None:
    procs = await proc_mesh(gpus=4)
    counters = await procs.spawn("counters", Counter, 10)

    counters.add.broadcast(1)
    print("all:", (await counters.add.call(1)).values())
    print("one:", await counters.slice(gpus=2).add.call_one(5))
    print("sum:", sum([await answer for answer in counters.add.stream(0)]))
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
