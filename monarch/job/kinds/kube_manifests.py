"""The manifests that a Kubernetes job sends to the API server. Nothing here connects to it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WORKER = "worker"  # the container of the host agent
SECRET_VARIABLE, SECRET_KEY = "MONARCH_JOB_SECRET", "secret"
ALLOCATION_LABEL = "monarch-loop/allocation"
MESH_LABEL = "monarch.pytorch.org/mesh-name"
NAME_LABEL = {"app.kubernetes.io/name": "monarch-worker"}
CRD_GROUP, CRD_VERSION, CRD_PLURAL = "monarch.pytorch.org", "v1alpha1", "monarchmeshes"

Manifest = dict[str, Any]


class PodMesh(NamedTuple):
    """The description of one mesh of hosts.

    ``template`` is a pod template; it is empty if the mesh attaches to existing pods, which
    ``selector`` finds.
    """

    num_hosts: int
    port: int
    template: Manifest
    selector: str
    rank_label: str
    labels: dict[str, str]
    annotations: dict[str, str]


def image_template(
    image: str, resources: Mapping[str, Any] | None, fuse: bool = False, shm_size: str | None = None
) -> Manifest:
    """Return the template of pods with one container of an image.

    With ``fuse`` the container is privileged, and gets the node's ``/dev/fuse``.
    """
    # Kubernetes' default is 64 MiB, too little for tensors between processes.
    shm: Manifest = {"medium": "Memory"}
    if shm_size is not None:
        shm["sizeLimit"] = shm_size
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": shm}]
    container: Manifest = {
        "name": WORKER, "image": image,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    if resources:
        # Requests equal limits: GPUs require it, and the kernel then takes nothing back.
        amounts = {name: str(value) for name, value in resources.items()}
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    if fuse:
        container["securityContext"] = {"privileged": True}
        container["volumeMounts"].append({"name": "fuse", "mountPath": "/dev/fuse"})
        volumes.append({"name": "fuse", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}})
    return {
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "automountServiceAccountToken": False,
        }
    }


def secret(name: str, secret: str, labels: Mapping[str, str]) -> Manifest:
    """Return the Secret with the job's secret, for the allocation's pods."""
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "labels": dict(labels)},
        "stringData": {SECRET_KEY: secret},
    }  # fmt: skip


def pod_template(
    mesh: PodMesh,
    labels: Mapping[str, str],
    secret_name: str,
    env: Mapping[str, str],
    command: Sequence[str],
    grace_seconds: int,
) -> Manifest:
    """Return the template of a mesh's pods, with all that a host agent needs."""
    template = copy.deepcopy(mesh.template)
    meta = template.setdefault("metadata", {})
    meta["labels"] = {**meta.get("labels", {}), **mesh.labels, **labels}
    if mesh.annotations:
        meta["annotations"] = {**meta.get("annotations", {}), **mesh.annotations}
    spec = template.setdefault("spec", {})
    grace = spec.setdefault("terminationGracePeriodSeconds", grace_seconds)
    worker = worker_of(template)
    if "command" not in worker and "args" not in worker:
        worker["command"] = list(command)
    variables: list[Manifest] = [{"name": name, "value": value} for name, value in env.items()]
    variables += [
        {"name": "MONARCH_PORT", "value": str(mesh.port)},
        {"name": "MONARCH_GRACE_SECONDS", "value": str(grace)},
        _of_pod("MONARCH_POD_IP", "status.podIP"),
        _of_pod("MONARCH_POD_NAME", "metadata.name"),
        {
            "name": SECRET_VARIABLE,
            "valueFrom": {"secretKeyRef": {"name": secret_name, "key": SECRET_KEY}},
        },
    ]
    of_template = worker.get("env") or []
    names = {variable["name"] for variable in of_template}
    worker["env"] = of_template + [x for x in variables if x["name"] not in names]
    worker.setdefault("ports", [{"containerPort": mesh.port}])
    worker.setdefault("readinessProbe", {"tcpSocket": {"port": mesh.port}, "periodSeconds": 5})
    return template


def stateful_set(name: str, mesh: PodMesh, template: Manifest) -> Manifest:
    """Return a StatefulSet of pods ``name``-0, -1, ..., which start at once and are replaced when
    lost."""
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": _meta(name, labels, mesh),
        "spec": {
            "serviceName": name, "replicas": mesh.num_hosts, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {MESH_LABEL: name}}, "template": template,
        },
    }  # fmt: skip


def headless_service(name: str, mesh: PodMesh, labels: Mapping[str, str]) -> Manifest:
    """Return the service that gives each pod a name in the cluster, also before it is ready."""
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": _meta(name, labels, mesh),
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True,
            "selector": {MESH_LABEL: name}, "ports": [{"name": "monarch", "port": mesh.port}],
        },
    }  # fmt: skip


def monarch_mesh(name: str, mesh: PodMesh, template: Manifest) -> Manifest:
    """Return the custom resource from which Monarch's operator makes pods, if a cluster has it."""
    return {
        "apiVersion": f"{CRD_GROUP}/{CRD_VERSION}", "kind": "MonarchMesh",
        "metadata": _meta(name, template["metadata"]["labels"], mesh),
        "spec": {"replicas": mesh.num_hosts, "port": mesh.port, "podTemplate": template},
    }  # fmt: skip


def worker_of(pod: Mapping[str, Any]) -> Manifest:
    """Return the container that runs the host agent, from a pod or a pod template."""
    containers: list[Manifest] = pod["spec"]["containers"]
    return next(
        (container for container in containers if container.get("name") == WORKER), containers[0]
    )


def _meta(name: str, labels: Mapping[str, str], mesh: PodMesh) -> Manifest:
    meta: Manifest = {"name": name, "labels": dict(labels)}
    if mesh.annotations:
        meta["annotations"] = dict(mesh.annotations)
    return meta


def _of_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
