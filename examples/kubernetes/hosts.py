"""Pods as hosts: describe themselves, and say when they are about to end.

    python examples/kubernetes/hosts.py trainers 2 --image registry.example/monarch:1
    python examples/kubernetes/hosts.py workers 2          # those of workers.yaml, which stay

Run it where pods can be reached, as in a pod of the cluster. The image needs Python and monarch.
"""

import argparse
import os
import platform
import sys

from monarch.actor import Actor, HostWarning, endpoint
from monarch.job import ImageSpec, KubernetesJob


class Describer(Actor):
    """One instance on each host."""

    @endpoint
    def describe(self) -> str:
        return f"{platform.node()}: {os.cpu_count()} CPUs, Python {platform.python_version()}"


def warned(warning: HostWarning) -> None:
    print(warning)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mesh")
    parser.add_argument("num_pods", type=int)
    parser.add_argument("--image")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--python", default="python3")
    options = parser.parse_args()

    job = KubernetesJob(options.namespace, timeout=300, python_exe=options.python)
    image = ImageSpec(options.image) if options.image else None
    job.add_mesh(options.mesh, options.num_pods, image_spec=image)
    try:
        hosts = getattr(job.state(cached_path=None), options.mesh)
        with hosts.on_warning(warned):
            describers = hosts.spawn_procs().spawn("describer", Describer)
            for text in describers.describe.call().get().values():
                print(text)
    finally:
        job.kill()


if __name__ == "__main__":
    sys.exit(main())
