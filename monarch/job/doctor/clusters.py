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

# In which group of the API a resource is, and what a job does with it.
_RIGHTS = {
    ("", "secrets"): ("create", "delete", "list"),
    ("", "services"): ("create", "delete", "list"),
    ("apps", "statefulsets"): ("create", "delete", "get", "list"),
    ("", "pods"): ("delete", "list"),
    ("", "events"): ("list",),
    ("", "pods/log"): ("get",),
}
_SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": 1e-3, "k": 1e3, "M": 1e6,
             "G": 1e9, "T": 1e12}  # fmt: skip


def of_kubernetes(job: KubernetesJob) -> Iterator[Finding]:
    """Check whether the API server answers, what this user may do, and what the server would
    refuse."""
    try:
        with job._api() as api:
            answers = f"the API server {api.server} answers: {api.version()}"
            yield Finding("ok", "kubernetes", answers)
            missing = [
                f"{verb} {resource}"
                for (group, resource), verbs in _RIGHTS.items() for verb in verbs
                if job._made and not api.may(verb, group, resource)
            ]  # fmt: skip
            if missing:
                yield Finding(
                    "failure", "kubernetes",
                    f"you may not {', '.join(missing)} in the namespace {job.namespace}",
                    "docs/allocations.md lists the rights that a job needs",
                )  # fmt: skip
                return
            yield from _refused(job, api)
            yield from _places(job, api)
            for name, mesh in job._pods.items():
                if not mesh.template and (num := len(api.pods(mesh.selector))) < mesh.num_hosts:
                    yield Finding(
                        "failure", "kubernetes",
                        f"{name} is to have {mesh.num_hosts} pods, and {num} have the labels "
                        f"{mesh.selector} in the namespace {job.namespace}",
                        "make them first, or name an image",
                    )  # fmt: skip
    except JobError as error:
        yield Finding("failure", "kubernetes", str(error))


def _refused(job: KubernetesJob, api: KubeApi) -> Iterator[Finding]:
    """Ask the server, in a dry run, which manifests of the job it refuses, and which pod of each
    mesh."""
    trial = copy.copy(job)
    trial._allocation, trial._secret = "doctor", bytes(32)
    orders = trial.render()
    for order in orders.copy():
        if order["kind"] == "StatefulSet":
            name = f"{order['metadata']['name']}-0"
            pod = copy.deepcopy(order["spec"]["template"])
            pod |= {"apiVersion": "v1", "kind": "Pod"}
            pod["metadata"]["name"] = name
            orders.append(pod)
    refused = []
    for order in orders:
        try:
            api.create(order, is_trial=True)
        except JobError as error:
            refused.append(str(error))
    for words in dict.fromkeys(refused):
        yield Finding("failure", "kubernetes", f"it would refuse the job: {words}")
    if orders and not refused:
        yield Finding("ok", "kubernetes", "it would take the job")


def _places(job: KubernetesJob, api: KubeApi) -> Iterator[Finding]:
    """Check whether some node is large enough for each mesh's pods, if this user may see the
    nodes."""
    nodes: list[Mapping[str, Any]] = []
    with contextlib.suppress(JobError):
        nodes = [node["status"].get("allocatable", {}) for node in api.nodes()]
    for name, mesh in job._made.items():
        wanted = manifests.worker_of(mesh.template).get("resources", {}).get("requests", {})
        for what, amount in wanted.items():
            largest = max((_amount(node.get(what, "0")) for node in nodes), default=0.0)
            if nodes and largest < _amount(amount):
                yield Finding(
                    "warning", "kubernetes",
                    f"each pod of {name} wants {what} {amount}, and the largest of its "
                    f"{len(nodes)} nodes has {largest:g}",
                    "unless nodes are added when they are wanted, the pods get no place",
                )  # fmt: skip


def _amount(text: str) -> float:
    """Return a quantity in Kubernetes' notation, such as "64Gi", as a number."""
    for suffix, factor in _SUFFIXES.items():
        if str(text).endswith(suffix):
            return float(str(text)[: -len(suffix)]) * factor
    return float(text)


def of_ray(job: RayJob) -> Iterator[Finding]:
    """Check whether Ray answers, and has as many nodes as the job needs hosts."""
    try:
        nodes = job.nodes()
    except JobError as error:
        yield Finding("failure", "ray", str(error))
        return
    fit = [
        node for node in nodes
        if all(node.get(name, 0) >= wanted for name, wanted in job.resources.items())
    ]  # fmt: skip
    told = f"it has {len(nodes)} nodes, of which {len(fit)} have {job.resources}"
    if len(fit) < job.num_hosts:
        mend = "more nodes, or less for each host: `resources` in [job.ray]"
        yield Finding("failure", "ray", f"{told}; the job wants {job.num_hosts}", mend)
    else:
        yield Finding("ok", "ray", told)


def of_cloud(job: LightningJob | SkyPilotJob) -> Iterator[Finding]:
    """Check whether the cloud's library is installed: other problems are known to the cloud
    only."""
    try:
        (lightning_sdk if isinstance(job, LightningJob) else skypilot_sdk)()
    except JobError as error:
        yield Finding("failure", "here", str(error))
