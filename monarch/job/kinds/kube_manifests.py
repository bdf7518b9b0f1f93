"""The manifests that a Kubernetes job sends to the API server. Nothing here speaks to it."""

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
    """The description of one mesh of hosts. ``template`` is a pod template, or empty where pods
    that others have made are attached to, which ``selector`` finds."""

    num_hosts: int
    port: int
    template: Manifest
    selector: str
    rank_label: str
    labels: dict[str, str]
    annotations: dict[str, str]


def image_template(
    image: str, resources: Mapping[str, Any] | None, shm_size: str | None = None, fuse: bool = False
) -> Manifest:
    """Pods of one container of an image; one for FUSE is privileged, and has the host's device."""
    # Kubernetes gives 64 MiB, too little for tensors between processes.
    shm: Manifest = {"medium": "Memory"}
    if shm_size is not None:
        shm["sizeLimit"] = shm_size
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": shm}]
    container: Manifest = {
        "name": WORKER, "image": image,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    if resources:
        # Equal, as GPUs want it, and so that the kernel takes none of it back.
        wanted = {name: str(value) for name, value in resources.items()}
        container["resources"] = {"requests": wanted, "limits": dict(wanted)}
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
    """The job's secret, for the pods of an allocation, and those that may read it."""
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
    """The template of a mesh's pods, with all that a host agent needs."""
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
    ours: list[Manifest] = [{"name": name, "value": value} for name, value in env.items()]
    ours += [
        {"name": "MONARCH_PORT", "value": str(mesh.port)},
        {"name": "MONARCH_GRACE_SECONDS", "value": str(grace)},
        _of_pod("MONARCH_POD_IP", "status.podIP"),
        _of_pod("MONARCH_POD_NAME", "metadata.name"),
        {
            "name": SECRET_VARIABLE,
            "valueFrom": {"secretKeyRef": {"name": secret_name, "key": SECRET_KEY}},
        },
    ]
    theirs = worker.get("env") or []
    taken = {variable["name"] for variable in theirs}
    worker["env"] = theirs + [one for one in ours if one["name"] not in taken]
    worker.setdefault("ports", [{"containerPort": mesh.port}])
    worker.setdefault("readinessProbe", {"tcpSocket": {"port": mesh.port}, "periodSeconds": 5})
    return template


def stateful_set(name: str, mesh: PodMesh, template: Manifest) -> Manifest:
    """Pods ``name``-0, -1, ..., started at once, each made again under its name when it is lost."""
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
    """Gives each pod a name in the cluster, also before it is ready."""
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": _meta(name, labels, mesh),
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True,
            "selector": {MESH_LABEL: name}, "ports": [{"name": "monarch", "port": mesh.port}],
        },
    }  # fmt: skip


def monarch_mesh(name: str, mesh: PodMesh, template: Manifest) -> Manifest:
    """The custom resource of which Monarch's operator makes pods, where a cluster has that."""
    return {
        "apiVersion": f"{CRD_GROUP}/{CRD_VERSION}", "kind": "MonarchMesh",
        "metadata": _meta(name, template["metadata"]["labels"], mesh),
        "spec": {"replicas": mesh.num_hosts, "port": mesh.port, "podTemplate": template},
    }  # fmt: skip


def worker_of(pod: Mapping[str, Any]) -> Manifest:
    """The container of a pod, or of a template, that the host agent runs in."""
    containers: list[Manifest] = pod["spec"]["containers"]
    return next((one for one in containers if one.get("name") == WORKER), containers[0])


def _meta(name: str, labels: Mapping[str, str], mesh: PodMesh) -> Manifest:
    meta: Manifest = {"name": name, "labels": dict(labels)}
    if mesh.annotations:
        meta["annotations"] = dict(mesh.annotations)
    return meta


def _of_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
