"""Pods as the API server describes them: which host each is, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from monarch.errors import JobError
from monarch.job.kinds.kube_api import KubeApi
from monarch.job.kinds.kube_manifests import Manifest, PodMesh, worker_of
from monarch.job.kinds.remote import connection_error

_REACH_SECONDS = 2.0

# Reasons for which a container never starts.
_HOPELESS = {
    "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
    "ImagePullBackOff", "InvalidImageName",
}  # fmt: skip


def by_rank(name: str, mesh: PodMesh, pods: Sequence[Manifest]) -> dict[int, Manifest]:
    """Return the pods that are not ending, by rank. Raises ``JobError`` if two have the same
    rank."""
    ranked: dict[int, Manifest] = {}
    for pod in pods:
        meta = pod["metadata"]
        is_over = pod["status"].get("phase") in ("Failed", "Succeeded")
        if "deletionTimestamp" in meta or is_over:
            continue
        number = meta.get("labels", {}).get(mesh.rank_label) or meta["name"].rpartition("-")[2]
        if not number.isdigit():
            raise JobError(
                f"which host of {name!r} is the pod {meta['name']}? It has no label "
                f"{mesh.rank_label}, and no number at the end of its name"
            )
        rank = int(number)
        if rank in ranked:
            raise JobError(
                f"two pods claim rank {rank} of {name!r}: {ranked[rank]['metadata']['name']} and "
                f"{meta['name']}. Name those that are meant with label_selector"
            )
        ranked[rank] = pod
    return ranked


def why_waiting(api: KubeApi, pod: Manifest, has_been_up: bool) -> str:
    """Return the reason why a pod waits; "" if it does not.

    Raises ``JobError`` if it will never start. A crash of its container is such a reason, unless
    ``has_been_up``: then Kubernetes restarts it.
    """
    name, status = pod["metadata"]["name"], pod["status"]
    worker = worker_of(pod)["name"]
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    for container in containers:
        state = container.get("state", {})
        waiting = state.get("waiting", {})
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _HOPELESS:
            raise JobError(f"pod {name} cannot start: {reason}: {message}".rstrip(": "))
        if reason == "CrashLoopBackOff" and not has_been_up:
            ended = container.get("lastState", {}).get("terminated", {})
            log = ended.get("message") or api.log(name, container["name"], before=True)
            tail = f"; the last of what it said:\n{log}" if log else ""
            raise JobError(
                f"pod {name} crashes: its container {container['name']} exits with status "
                f"{ended.get('exitCode')} ({ended.get('reason')}){tail}"
            )
        if container["name"] == worker and "running" not in state:
            return f"pod {name} is {reason or status.get('phase', 'Pending')}"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return f"pod {name} has no node: {condition.get('message') or condition.get('reason')}"
    if not status.get("podIP") or not status.get("containerStatuses"):
        return f"pod {name} is {status.get('phase', 'Pending')}"
    return ""


def port_of(pod: Manifest, port: int) -> int:
    """Return the port of a pod's host agent, from its environment; ``port`` if that has none."""
    for variable in worker_of(pod).get("env") or ():
        if variable["name"] == "MONARCH_PORT" and str(variable.get("value", "")).isdigit():
            return int(variable["value"])
    return port


def is_in_reach(url: str) -> bool:
    """Whether a packet to a pod is answered; True also if the answer is that the port is closed."""
    parts = urlsplit(url)
    error = connection_error(parts.hostname or "", parts.port or 0, _REACH_SECONDS)
    return error is None or isinstance(error, ConnectionRefusedError)
