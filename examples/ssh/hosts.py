"""Hosts by name: start a host agent on each with ssh, call all of them, leave nothing behind.

    python examples/ssh/hosts.py gpu1 gpu2

Each name is one that `ssh NAME true` works with, without a password. What must be there is
monarch, for the Python that `MONARCH_PYTHON` names, by default `python3`. `SSH_ARGS` are further
options for ssh.
"""

import os
import sys

from monarch.actor import Actor, endpoint
from monarch.job import SSHJob


class Machine(Actor):
    """Describes the machine that it runs on."""

    @endpoint
    def describe(self) -> str:
        return f"{os.uname().nodename}: {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"


def main(names: list[str]) -> None:
    python, ssh_args = os.environ.get("MONARCH_PYTHON", "python3"), os.environ.get("SSH_ARGS", "")
    job = SSHJob(python, ssh_args.split(), monarch_port=0)
    job.add_mesh("machines", names)
    try:
        machines = job.state(cached_path=None).machines.spawn_procs().spawn("machine", Machine)
        for name, description in zip(names, machines.describe.call().get().values(), strict=True):
            print(f"{name} is {description}")
    finally:
        job.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
