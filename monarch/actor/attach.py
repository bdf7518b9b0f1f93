"""Host agents in processes of their own, and how a client comes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.actor.future import Future
from monarch.actor.host_mesh import Host, HostMesh
from monarch.mesh import Shape, Slice
from monarch.runtime.client_agent import client
from monarch.wire.host_url import HostUrl

__all__ = ["attach_to_workers", "run_worker_loop_forever"]


def run_worker_loop_forever(*, private_key: Any = None, ca: Any = None, address: str) -> None:
    """Be the host agent of this machine at ``address``; returns only when shut down.

    Serves one client at a time: when one leaves or dies, its procs are stopped, and the next
    may come. Beyond loopback a job secret is needed (``MONARCH_JOB_SECRET``).
    """
    # Imported when used: only a host agent needs the sync engine, and it costs 20 ms.
    from monarch.runtime.host_main import serve_host

    serve_host(address)


def attach_to_workers(
    *,
    private_key: Any = None,
    ca: Any = None,
    workers: Sequence[str | Future[str]],
    name: str | None = None,
    secret: bytes | None = None,
    takeover: bool = False,
) -> HostMesh:
    """The hosts whose agents listen at ``workers``, as a mesh with the dimension ``hosts``.

    Returns at once, and keeps trying until they are up. A host that serves another client
    refuses, unless ``takeover``: then that client's procs are stopped.
    """
    agent = client()
    urls = [worker if isinstance(worker, str) else worker.get() for worker in workers]
    if secret is not None:
        agent.use_secret(secret)
    hosts = []
    for url in urls:
        parsed = HostUrl.parse(url)
        if parsed.advertise.startswith("tcp://"):
            agent.listen_beyond(parsed.advertise)
        agent.link(parsed.advertise, takeover=takeover)
        hosts.append(Host(parsed.address(), parsed.advertise))
    shape = Shape(["hosts"], Slice.new_row_major([len(hosts)]))
    return HostMesh(name or "hosts", shape, hosts, owned=True)
