"""The common part of allocations on other machines.

Their hosts listen at TCP addresses, and accept only processes that have the job's secret.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from monarch.actor import attach_to_workers
from monarch.errors import JobError
from monarch.job.job import JobState, JobTrait
from monarch.net.identifiers import new_secret
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import closed_of, inspect_hosts
from monarch.wire.address import ProcAddress
from monarch.wire.message import HostState


class RemoteHost(Protocol):
    """A host of an allocation, as its job knows it."""

    @property
    def mesh(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...


class GatewayLogin(NamedTuple):
    """A login to the gateway.

    ``command``, with a shell command appended to it, runs that on the gateway, through our standard
    input and output. ``python`` is a Python on the gateway. ``name`` is for errors.
    """

    name: str
    command: Sequence[str]
    python: str


class RemoteJob(JobTrait):
    """A job on other machines; subclasses fill ``hosts`` and ``_secret``.

    To learn whether a host runs, its agent is asked. A host at whose port no process listens has
    ended. A host that does not answer may be behind a broken link, and counts as running.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        super().__init__()
        self.preload = list(preload)
        self._secret = b""

    @property
    @abstractmethod
    def meshes(self) -> dict[str, int]:
        """Return how many hosts each mesh has, by its name."""

    @property
    @abstractmethod
    def hosts(self) -> Sequence[RemoteHost]:
        """Return the known hosts, mesh by mesh."""

    def _gateway_login(self) -> GatewayLogin | None:
        """Return the login to the gateway; ``None`` if this machine reaches the hosts itself."""
        return None

    def _enter(self) -> None:
        """Join the job with its secret, through its gateway if it has one.

        Raises ``JobError`` if the gateway cannot be reached, or this program uses another gateway
        already.
        """
        client().use_secret(self._secret)
        login = self._gateway_login()
        node = client().node
        if login is None or (node.gateway is not None and node.gateway.name == login.name):
            return
        if node.gateway is not None:
            raise JobError(
                f"this program reaches hosts through {node.gateway.name} already, and those of "
                f"this job are behind {login.name}: use one gateway a program"
            )
        from monarch.net.gateway import Gateway, GatewayError  # Most jobs have none.

        try:
            node.use_gateway(Gateway(login.command, login.name, login.python))
        except GatewayError as error:
            raise JobError(f"cannot reach the gateway {error}") from None

    def _state(self) -> JobState:
        self._enter()
        meshes = {}
        for mesh in self.meshes:
            urls = [host.url for host in self.hosts if host.mesh == mesh]
            meshes[mesh] = attach_to_workers(workers=urls, name=mesh, secret=self._secret)
            if self.preload:
                meshes[mesh].preload(self.preload)
        return JobState(meshes)

    def visit(self, url: str) -> ProcAddress:
        self._enter()
        return super().visit(url)

    def urls(self) -> list[str]:
        return [host.url for host in self.hosts]

    def names_by_url(self) -> dict[str, str]:
        return {host.url: host.name for host in self.hosts}

    def ask(
        self, urls: Sequence[str], *, patiently: bool = False
    ) -> dict[str, Response[HostState]]:
        """Return the state of host agents, by URL.

        ``patiently`` allows time for a first connection, perhaps over a long way.
        """
        if not urls:
            return {}
        addresses = {url: self.visit(url) for url in urls}
        return inspect_hosts(client().node, addresses, silent=() if patiently else urls)

    def ended(self) -> list[str]:
        """Return the URLs at which no process listens any more."""
        replies = self.ask(self.urls())
        silent = [url for url, reply in replies.items() if reply.error]
        closed = closed_of(silent, client().node)
        return [url for url in silent if url in closed]

    def running_urls(self) -> list[str]:
        ended = self.ended()
        return [url for url in self.urls() if url not in ended]

    def _is_running(self) -> bool:
        return bool(self.hosts) and not self.ended()

    def why_ended(self) -> str:
        names = self.names_by_url()
        return "\n".join(f"{names[url]}: nobody listens at {url} any more" for url in self.ended())

    def _refuse_script(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError(f"a {self.kind} job runs no client script; run the script itself")

    def _forget_links(self) -> None:
        """Drop this program's links to the hosts, so that their end is no failure."""
        if process.is_bootstrapped():
            for host in self.hosts:
                client().unlink(host.url)


def connection_error(host: str, port: int, seconds: float) -> OSError | None:
    """Return why a port cannot be connected to; ``None`` if it can."""
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        return error
    return None


def job_secret() -> bytes:
    """Return the secret of the job that this program uses already, or a new one.

    A program has one secret for TCP, so all jobs that it makes share it.
    """
    keys = client().node.keys
    return keys.secret if keys is not None else new_secret()
