"""Attaches a client to host agents in processes of their own, and detaches it."""

from __future__ import annotations

import atexit
import subprocess
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from monarch.actor.future import Future, make_future, value_of_outcome
from monarch.actor.host import Host
from monarch.actor.host_mesh import HostMesh, one_dimension
from monarch.net.machine import machine_id
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent, client
from monarch.runtime.ends.late_thread import run_aside
from monarch.runtime.ends.process_group import end_child
from monarch.runtime.hosts.agent_process import start_agent
from monarch.runtime.promise import Promise
from monarch.wire.host_url import HostUrl


def run_worker_loop_forever(
    *, private_key: Any = None, ca: Any = None, address: str, insecure: bool = False
) -> None:
    """Serve as the host agent of this machine at ``address``; returns only after a shutdown.

    It serves one client at a time. When a client leaves or dies, its procs are stopped and the next
    client may attach. Beyond loopback a job secret is needed (``MONARCH_JOB_SECRET``), unless
    ``insecure``: any process that can reach the port can run code here. ``tcp://HOST:fdN`` takes
    over an inherited socket that listens. ``ca`` and ``private_key`` are accepted for upstream's
    sake and ignored.
    """
    _warn(ca, insecure)
    # Imported when used: only a host agent needs the sync engine, and it costs 20 ms.
    from monarch.runtime.entry.host_main import serve_host

    serve_host(address, insecure=insecure)


run_worker_loop_until_shutdown = run_worker_loop_forever


def start_worker_loop_forever(
    *, private_key: Any = None, ca: Any = None, address: str
) -> Future[None]:
    """Run ``run_worker_loop_forever`` on a thread; the future is done after the shutdown.

    Raises ``ValueError`` at once for an invalid address; the future raises any other failure.
    """
    if ":fd" not in address:
        HostUrl.parse(address)
    done: Promise[tuple[None, BaseException | None]] = Promise()

    def serve() -> None:
        try:
            run_worker_loop_forever(private_key=private_key, ca=ca, address=address)
            done.set((None, None))
        except BaseException as error:
            done.set((None, error))

    threading.Thread(target=serve, name="monarch-worker-loop", daemon=True).start()
    return make_future(done, value_of_outcome)


def attach(addr: str) -> None:
    """Make this program a client of the host agent at ``addr`` before it does anything else.

    Waits until the host accepts it. Attaching to the same host again changes nothing.
    ``this_host()`` is still this machine. There is no gateway: over TCP, the procs of other hosts
    must be able to reach this machine.

    Raises ``HostUnreachable`` if no agent answers, ``HostBusy`` if the host serves another client,
    and ``RuntimeError`` if the program has used the runtime before.
    """
    url = HostUrl.parse(addr).advertise
    if process.is_bootstrapped():
        agent = process.current()
        if isinstance(agent, ClientAgent) and url in agent.links:
            return
        raise RuntimeError(
            "client was initialized without a remote attachment; call attach(addr) before the "
            "first context()/this_host()/this_proc()"
        )
    attach_to_workers(workers=[addr]).initialized.get()


def hosts_from_config(name: str, num_hosts: int = 2) -> HostMesh:
    """Return a mesh of ``num_hosts`` hosts; each is a process of this machine that ends with this
    program.

    Use it to try a program on several hosts; ``monarch.job`` starts real hosts.
    """
    agent = client()
    urls = [f"ipc://{agent.directory}/{name}-{number}" for number in range(num_hosts)]
    for url in urls:
        host = start_agent(url, ends_with_us=True)
        atexit.register(_end, agent, url, host)
    return attach_to_workers(workers=urls, name=name)


def _end(agent: ClientAgent, url: str, host: subprocess.Popen[bytes]) -> None:
    agent.expect_end(url)
    end_child(host)


def attach_to_workers(
    *,
    private_key: Any = None,
    ca: Any = None,
    workers: Sequence[str | Future[str]],
    name: str | None = None,
    secret: bytes | None = None,
    takeover: bool = False,
    insecure: bool = False,
) -> HostMesh:
    """Return the hosts whose agents listen at ``workers``, as a mesh with the dimension ``hosts``.

    Returns at once, and keeps trying until the agents answer. A host that serves another client
    refuses, unless ``takeover``: then that client's procs are stopped. ``insecure`` uses no secret
    beyond loopback: any process that can reach this program can then run code in it. ``ca`` and
    ``private_key`` are accepted for upstream's sake and ignored.
    """
    _warn(ca, insecure)
    agent = client()
    urls = [worker if isinstance(worker, str) else worker.get() for worker in workers]
    if secret is not None:
        agent.use_secret(secret)
    if insecure:
        agent.node.allow_insecure()
    hosts = []
    for url in urls:
        parsed = HostUrl.parse(url)
        if parsed.advertise.startswith("tcp://"):
            agent.listen_beyond(parsed.advertise)
        agent.link(parsed.advertise, takeover=takeover)
        hosts.append(Host(parsed.address(machine_id()), parsed.advertise))
    return HostMesh(name or "hosts", one_dimension(len(hosts)), hosts, owned=True)


def _warn(ca: Any, insecure: bool) -> None:
    if ca == "trust_all_connections":
        warnings.warn(
            "ca='trust_all_connections' is ignored: connections are trusted that know the job's "
            "secret, or come from your own account on this machine. Leave the argument out",
            stacklevel=3,
        )
    if insecure:
        warnings.warn(
            "insecure=True: beyond loopback and without a secret, whoever can reach the port can "
            "run code as you",
            stacklevel=3,
        )


_MAX_SECONDS = float(2**64)


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stop everything that this program spawned and leave the hosts. Runs at exit too; idempotent.

    Actors have ``host_timeout`` seconds to clean up. Raises ``ValueError`` if ``host_timeout`` is
    not a finite number of seconds from 0 on.
    """
    if host_timeout is not None and not 0 <= host_timeout < _MAX_SECONDS:
        raise ValueError("host_timeout must be finite, non-negative and less than 2**64 seconds")
    done: Promise[None] = Promise()
    agent = process.current() if process.is_bootstrapped() else None
    if not isinstance(agent, ClientAgent):
        done.set(None)
    else:

        def close() -> None:
            agent.close(host_timeout)
            process.uninstall()
            done.set(None)

        run_aside(close, name="monarch-shutdown")
    return make_future(done, lambda value: value)
