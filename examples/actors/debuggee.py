"""Sixteen actors of which four fail in a function of a function: whose traceback is it?

Run it with `python examples/actors/debuggee.py`, or with `older` for the older spelling.
"""

import asyncio
import sys

from monarch.actor import Actor, ActorError, current_rank, endpoint, proc_mesh, this_host


def bad_rank() -> None:
    raise ValueError("bad rank")


def work(rank: int) -> int:
    if rank % 4 == 2:
        bad_rank()
    return rank + rank % 4 + 1


class Debuggee(Actor):
    @endpoint
    async def to_debug(self) -> int:
        return work(current_rank().rank)


def show(error: ActorError) -> None:
    print(f"it raised {error.exception!r}, in:")
    for line in error.exception_formatted.splitlines():
        if line.strip().startswith("File "):
            print("  ", line.rpartition(", ")[2])


def current() -> None:
    procs = this_host().spawn_procs(per_host={"host": 4, "gpu": 4})
    debuggees = procs.spawn("debuggee", Debuggee)
    try:
        debuggees.to_debug.call().get()
    except ActorError as error:
        show(error)
    answers = [future for future in debuggees.to_debug.stream() if future.exception() is None]
    print("the others:", sorted(future.get() for future in answers))


async def older() -> None:
    debuggees = await (await proc_mesh(hosts=4, gpus=4)).spawn("debuggee", Debuggee)
    try:
        await debuggees.to_debug.call()
    except ActorError as error:
        show(error)
    answers = await asyncio.gather(
        *(future.as_asyncio() for future in debuggees.to_debug.stream()), return_exceptions=True
    )
    print("the others:", sorted(answer for answer in answers if isinstance(answer, int)))


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
