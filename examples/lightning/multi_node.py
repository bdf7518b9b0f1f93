"""Machines of Lightning, from a Studio: get them once, use them again and again.

    python examples/lightning/multi_node.py 2 L40S_X_4

It is the order of Monarch's Studio series: reserve machines through Multi-Machine Training, spawn a
proc for each GPU, call actors, change code and call again, and give the machines back. Needs
`pip install 'monarch-loop[lightning]'` and an account; it was not run there. The plugin that older
Studios had to install (`studio.install_plugin`) is part of the service by now.
"""

import re
import sys

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import LightningJob


class ToyActor(Actor):
    """One instance on each proc."""

    def __init__(self) -> None:
        self.rank = current_rank().rank

    @endpoint
    def hello_world(self, message: str) -> str:
        return f"Identity: {self.rank}, {message=}"


def main(num_nodes: int, machine: str) -> None:
    match = re.search(r"_X_(\d+)$", machine)
    gpus = int(match[1]) if match else 1
    job = LightningJob(num_nodes, machine, name="monarch-toy", mesh="trainers")
    try:
        # Noted in .monarch: the next start of this program finds the machines there.
        trainers = job.state().trainers
        procs = trainers.spawn_procs({"gpus": gpus})
        actors = procs.spawn("toy", ToyActor)
        for text in actors.hello_world.call("hey there, from script!!").get().values():
            print(text)
    finally:
        job.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
