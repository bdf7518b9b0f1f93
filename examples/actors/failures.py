"""What goes wrong, and who is told: an exception, a dead process, and a supervisor that handles it.

Run it with `python examples/actors/failures.py`, or with `older` for the older spelling.
"""

import asyncio
import os
import signal
import sys

from monarch.actor import (
    Actor,
    ActorError,
    MeshFailure,
    SupervisionError,
    context,
    endpoint,
    proc_mesh,
    this_host,
)


class Worker(Actor):
    @endpoint
    async def divide(self, a: int, b: int) -> float:
        return a / b

    @endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Foreman(Actor):
    """Owns the workers. So it is told when one of them dies."""

    def __init__(self):
        self.workers = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
        self.told: list[str] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(f"rank {failure.crashed_ranks[0]} of {failure.mesh_name}: {failure.event}")
        return True  # Handled: I live on.

    @endpoint
    async def try_all(self) -> list[str]:
        story = []
        first, second = self.workers.slice(gpus=0), self.workers.slice(gpus=1)
        try:
            await self.workers.divide.call(1, 0)
        except ActorError as error:
            story.append(f"an endpoint raised {type(error.exception).__name__}; its actor lives")
        try:
            await second.die.call_one()
        except SupervisionError:
            story.append("a process died, and the call that waited for it was told")
        story.append(f"the others go on: {await first.divide.call_one(8, 2)}")
        return story

    @endpoint
    async def what_i_was_told(self) -> list[str]:
        return self.told

    @endpoint
    async def name(self) -> str:
        return context().actor_instance.name


def current() -> None:
    foreman = this_host().spawn_procs().spawn("foreman", Foreman)
    for line in foreman.try_all.call_one().get():
        print(line)
    while not (told := foreman.what_i_was_told.call_one().get()):
        pass  # The news and our question travel on different ways.
    print("the owner was told:", *told)


async def older() -> None:
    foreman = await (await proc_mesh(gpus=1)).spawn("foreman", Foreman)
    for line in await foreman.try_all.call_one():
        print(line)
    while not (told := await foreman.what_i_was_told.call_one()):
        pass
    print("the owner was told:", *told)


if __name__ == "__main__":
    asyncio.run(older()) if "older" in sys.argv else current()
