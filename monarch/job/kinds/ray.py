"""Jobs on nodes of a Ray cluster: on each node, an actor of Ray's runs the host agent."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.errors import JobError
from monarch.job.kinds.remote import connection_error, job_secret
from monarch.job.kinds.scheduled import (
    LONGEST_LOOK_SECONDS,
    SHORTEST_LOOK_SECONDS,
    PlacedHost,
    ScheduledJob,
)
from monarch.net.identifiers import new_uid
from monarch.runtime.hosts.agent_process import start_agent

_NAMESPACE = "monarch"
_REACH_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_UP_SECONDS = 60.0
_TERM_SECONDS = 5.0


class RayHost:
    """An actor of Ray's on a node, which runs a host agent.

    If the agent dies, the actor ends too, and Ray starts another.
    """

    def __init__(self, name: str, secret: str, port: int, env: Mapping[str, str]) -> None:
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(1024)
            self._url = f"tcp://{address}:{listener.getsockname()[1]}"
            fd = listener.fileno()
            # When this actor ends, so do the agent and all processes that the agent has started.
            self._agent = start_agent(
                f"tcp://{address}:fd{fd}",
                name,
                secret=secret,
                ends_with_us=True,
                env={**os.environ, **env},
                pass_fds=[fd],
            )
        self._is_stopping = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        status = self._agent.wait()
        if not self._is_stopping:
            os._exit(abs(status) or 1)

    def url(self) -> str:
        """Return the URL at which the agent listens."""
        return self._url

    def stop(self) -> None:
        """End the agent, and wait for its end."""
        self._is_stopping = True
        self._agent.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(_TERM_SECONDS)
        self._agent.kill()


class RayJob(ScheduledJob):
    """``RayJob({"trainers": 2}, "10.0.0.1:6379")``: a number of nodes for each mesh.

    ``address`` is as ``ray.init`` has it, by default that of ``RAY_ADDRESS``, or of the cluster of
    this machine. ``resources`` is each host's share of its node: ``{"CPU": 1, "GPU": 8}``. The
    nodes need monarch for the Python that Ray runs there. Getting the nodes may take ``timeout``
    seconds. Each host listens at ``monarch_port``; 0 is any free port.
    """

    kind = "ray"
    _KEPT = ("address", "resources", "timeout", "monarch_port")

    def __init__(
        self,
        meshes: Mapping[str, int],
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        timeout: float = _UP_SECONDS,
        monarch_port: int = 0,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(meshes, env, preload)
        self.address = address
        self.resources = dict(resources or {"CPU": 1})
        self.timeout = timeout
        self.monarch_port = monarch_port
        self._allocation = ""

    def _names(self) -> list[str]:
        """Return the names of the actors that run the hosts."""
        return [
            f"{mesh}{rank}-{self._allocation}"
            for mesh, num_hosts in self._meshes.items()
            for rank in range(num_hosts)
        ]

    def _begin(self, client_script: str | None) -> None:
        self._refuse_script(client_script)
        if not self._meshes:
            raise JobError("the job has no meshes")
        ray = self._connect()
        self._secret = job_secret()
        self._allocation = new_uid()
        group = ray.util.placement_group(
            [self.resources] * self.num_hosts,
            strategy="STRICT_SPREAD",
            name=self._allocation,
            lifetime="detached",
        )
        if not group.wait(self.timeout):
            nodes = [
                ", ".join(f"{name} {node.get(name, 0):g}" for name in self.resources)
                for node in self.nodes()
            ]
            raise JobError(
                f"Ray has no place for {self.num_hosts} hosts with {self.resources} each, on a "
                f"node each, within {self.timeout:.0f} s; its {len(nodes)} nodes have: "
                f"{'; '.join(nodes)}"
            )

    def _create(self, client_script: str | None) -> None:
        ray = self._connect()
        group = ray.util.get_placement_group(self._allocation)
        host = ray.remote(RayHost)
        for index, name in enumerate(self._names()):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)
            resources = dict(self.resources)
            options = host.options(
                name=name,
                namespace=_NAMESPACE,
                lifetime="detached",
                max_restarts=-1,
                scheduling_strategy=strategy,
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
            )
            options.remote(_host_name(name), self._secret.hex(), self.monarch_port, self.env)

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each live node of the cluster.

        Raises ``JobError`` if Ray is not installed, or the cluster cannot be reached.
        """
        return [node["Resources"] for node in self._connect().nodes() if node["Alive"]]

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError:
            raise JobError(
                "a job of kind ray needs Ray: pip install 'monarch-loop[ray]', of the version "
                "that the cluster has"
            ) from None
        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS") or "auto"
            self._knock(address)
            handler = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(
                    address=address,
                    namespace=_NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                )
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise JobError(f"cannot reach Ray at {address}: {error}") from None
            finally:
                # Ray would otherwise end the program in its own way.
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, handler)
        import ray.util.scheduling_strategies

        return ray

    def _knock(self, address: str) -> None:
        """Raise ``JobError`` if Ray cannot be reached at its address. Ray would try for minutes."""
        host, _, port = address.removeprefix("ray://").rpartition(":")
        error = connection_error(host, int(port), _REACH_SECONDS) if port.isdigit() else None
        if error is not None:
            raise JobError(
                f"cannot reach Ray at {address}: {error.strerror or error}. Is its head up, with "
                "`ray start --head`?"
            )

    def _place(self) -> list[PlacedHost]:
        ray = self._connect()
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                actors = [ray.get_actor(name, namespace=_NAMESPACE) for name in self._names()]
            except ValueError as error:
                raise JobError(f"{self._title()}: {error}") from None
            try:
                urls = ray.get([actor.url.remote() for actor in actors], timeout=_ANSWER_SECONDS)
                break
            except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
                # An actor is starting, or restarting.
                if time.monotonic() > deadline:
                    raise JobError(f"{self._title()} does not come up: {error}") from None
                time.sleep(LONGEST_LOOK_SECONDS / 4)
        names = [_host_name(name) for name in self._names()]
        return [PlacedHost(*host) for host in zip(self._slots(), names, urls, strict=True)]

    def _title(self) -> str:
        return f"the placement group {self._allocation} of Ray"

    def _is_kept(self) -> bool:
        if not self._allocation:
            return False
        ray = self._connect()
        try:
            for name in self._names():
                ray.get_actor(name, namespace=_NAMESPACE)
        except ValueError:
            return False
        return True

    def _kill(self) -> None:
        """End the actors and their agents, and remove the placement group; wait until both are
        gone."""
        self._forget_links()
        if self._allocation:
            ray = self._connect()
            actors = []
            for name in self._names():
                with contextlib.suppress(ValueError):
                    actors.append(ray.get_actor(name, namespace=_NAMESPACE))
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get([actor.stop.remote() for actor in actors], timeout=_ANSWER_SECONDS)
            for actor in actors:
                ray.kill(actor, no_restart=True)
            with contextlib.suppress(ValueError):
                ray.util.remove_placement_group(ray.util.get_placement_group(self._allocation))
            deadline = time.monotonic() + _UP_SECONDS
            while remaining := self._remaining(ray):
                if time.monotonic() > deadline:
                    raise JobError(f"{self._title()} is still there: {', '.join(remaining)}")
                time.sleep(SHORTEST_LOOK_SECONDS)
        self._hosts = []
        self._allocation = ""

    def _remaining(self, ray: Any) -> list[str]:
        named = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
        remaining = [name for name in self._names() if name in named]
        for group in ray.util.placement_group_table().values():
            if group["name"] == self._allocation and group["state"] != "REMOVED":
                remaining.append(f"its group, {group['state']}")
        return remaining

    def _placement(self) -> dict[str, Any]:
        return {"_allocation": self._allocation}


def _host_name(actor: str) -> str:
    """Return the name of the host that an actor runs."""
    return actor.rpartition("-")[0]
