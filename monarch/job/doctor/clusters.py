"""Questions to a cluster about a job before it starts: nothing is made, and nothing is queued."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from monarch.errors import JobError
from monarch.job.doctor.findings import Finding
from monarch.job.kinds import kube_manifests as manifests
from monarch.job.kinds.kube_api import KubeApi
from monarch.job.kinds.kubernetes import KubernetesJob
from monarch.job.kinds.lightning import LightningJob, lightning_sdk
from monarch.job.kinds.ray import RayJob
from monarch.job.kinds.skypilot import SkyPilotJob, skypilot_sdk

# The rights that a job needs, by the API group and the name of a resource.
_RIGHTS = {
    ("", "secrets"): ("create", "delete", "list"),
    ("", "services"): ("create", "delete", "list"),
    ("apps", "statefulsets"): ("create", "delete", "get", "list"),
    ("", "pods"): ("delete", "list"),
    ("", "events"): ("list",),
    ("", "pods/log"): ("get",),
}
_SUFFIXES = {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}  # fmt: skip


def of_kubernetes(job: KubernetesJob) -> Iterator[Finding]:
    """Yield findings about the API server: whether it answers, and what it does not allow."""
    try:
        with job._api() as api:
            answers = f"the API server {api.server} answers: {api.version()}"
            yield Finding("ok", "kubernetes", answers)
            missing = [
                f"{verb} {resource}"
                for (group, resource), verbs in _RIGHTS.items()
                for verb in verbs
                if job._made and not api.may(verb, group, resource)
            ]
            if missing:
                text = f"you may not {', '.join(missing)} in the namespace {job.namespace}"
                mend = "docs/allocations.md lists the rights that a job needs"
                yield Finding("failure", "kubernetes", text, mend)
                return
            yield from _refused(job, api)
            yield from _nodes_too_small(job, api)
            for name, mesh in job._pods.items():
                if not mesh.template and (num := len(api.pods(mesh.selector))) < mesh.num_hosts:
                    text = (
                        f"{name} is to have {mesh.num_hosts} pods, and {num} have the labels "
                        f"{mesh.selector} in the namespace {job.namespace}"
                    )
                    mend = "make them first, or name an image"
                    yield Finding("failure", "kubernetes", text, mend)
    except JobError as error:
        yield Finding("failure", "kubernetes", str(error))


def _refused(job: KubernetesJob, api: KubeApi) -> Iterator[Finding]:
    """Yield what the server says to the job's manifests, and to a pod of each mesh, in a dry run.

    It is a finding for each refusal; if nothing is refused, one that says so.
    """
    trial = copy.copy(job)
    trial._allocation, trial._secret = "doctor", bytes(32)
    rendered = trial.render()
    for manifest in rendered.copy():
        if manifest["kind"] == "StatefulSet":
            pod = copy.deepcopy(manifest["spec"]["template"])
            pod |= {"apiVersion": "v1", "kind": "Pod"}
            pod["metadata"]["name"] = f"{manifest['metadata']['name']}-0"
            rendered.append(pod)
    errors = []
    for manifest in rendered:
        try:
            api.create(manifest, is_trial=True)
        except JobError as error:
            errors.append(str(error))
    for text in dict.fromkeys(errors):
        yield Finding("failure", "kubernetes", f"it would refuse the job: {text}")
    if rendered and not errors:
        yield Finding("ok", "kubernetes", "it would take the job")


def _nodes_too_small(job: KubernetesJob, api: KubeApi) -> Iterator[Finding]:
    """Yield a finding for each resource of which no node has enough for one of a mesh's pods.

    There is none if this user may not see the nodes.
    """
    nodes: list[Mapping[str, Any]] = []
    with contextlib.suppress(JobError):
        nodes = [node["status"].get("allocatable", {}) for node in api.nodes()]
    for name, mesh in job._made.items():
        requests = manifests.worker_of(mesh.template).get("resources", {}).get("requests", {})
        for resource, amount in requests.items():
            largest = max((_amount(node.get(resource, "0")) for node in nodes), default=0.0)
            if nodes and largest < _amount(amount):
                text = (
                    f"each pod of {name} wants {resource} {amount}, and the largest of its "
                    f"{len(nodes)} nodes has {largest:g}"
                )
                mend = "unless nodes are added when they are wanted, the pods get no place"
                yield Finding("warning", "kubernetes", text, mend)


def _amount(text: str) -> float:
    """Return a quantity in Kubernetes' notation, such as "64Gi", as a number."""
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def of_ray(job: RayJob) -> Iterator[Finding]:
    """Check whether Ray answers, and has as many nodes as the job needs hosts."""
    try:
        nodes = job.nodes()
    except JobError as error:
        yield Finding("failure", "ray", str(error))
        return
    resources = job.resources.items()
    num_fit = sum(all(node.get(name, 0) >= num for name, num in resources) for node in nodes)
    text = f"it has {len(nodes)} nodes, of which {num_fit} have {job.resources}"
    if num_fit < job.num_hosts:
        mend = "more nodes, or less for each host: `resources` in [job.ray]"
        yield Finding("failure", "ray", f"{text}; the job wants {job.num_hosts}", mend)
    else:
        yield Finding("ok", "ray", text)


def of_cloud(job: LightningJob | SkyPilotJob) -> Iterator[Finding]:
    """Check whether the cloud's library is installed. Only the cloud knows of other problems."""
    try:
        (lightning_sdk if isinstance(job, LightningJob) else skypilot_sdk)()
    except JobError as error:
        yield Finding("failure", "here", str(error))
