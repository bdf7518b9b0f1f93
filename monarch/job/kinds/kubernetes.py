"""Jobs on Kubernetes: a StatefulSet for each mesh, or pods that exist already."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from monarch.errors import JobError
from monarch.job.bundle.bundle_offer import python_arguments
from monarch.job.kinds import kube_manifests as manifests
from monarch.job.kinds.kube_api import KubeApi, KubeConfig
from monarch.job.kinds.kube_manifests import (
    ALLOCATION_LABEL,
    MESH_LABEL,
    NAME_LABEL,
    SECRET_VARIABLE,
    Manifest,
    PodMesh,
)
from monarch.job.kinds.kube_pods import by_rank, is_in_reach, port_of, why_waiting
from monarch.job.kinds.remote import GatewayLogin, job_secret
from monarch.job.kinds.scheduled import (
    SHORTEST_LOOK_SECONDS,
    PlacedHost,
    ScheduledJob,
    wait_for_place,
)
from monarch.net.identifiers import new_uid
from monarch.wire.keys import SECRET_BYTES

__all__ = ["ImageSpec", "KubeConfig", "KubernetesJob"]

Self = TypeVar("Self", bound="KubernetesJob")

_log = logging.getLogger(__name__)

_RANK_LABEL = "apps.kubernetes.io/pod-index"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MAX_NAME = 40  # With a suffix, it must fit into a label and a name in the DNS.
_MAX_LABEL = 63  # the longest value of a label, which names a mesh of existing pods
_GONE_SECONDS = 90.0
_GRACE_SECONDS = 30


class ImageSpec(NamedTuple):
    """The image of a mesh's pods, which must have a Python; without monarch it gets ours.
    ``resources`` are each pod's: ``{"nvidia.com/gpu": 8, "memory": "64Gi"}``.

    ``/dev/shm`` takes memory up to ``shared_memory_size`` ("16Gi"), or all that the pod has.
    ``enable_fuse`` makes the container privileged and gives it the node's ``/dev/fuse``.
    """

    image: str
    resources: Mapping[str, Any] | None = None
    enable_fuse: bool = False
    shared_memory_size: str | None = None


class KubernetesJob(ScheduledJob):
    """``job = KubernetesJob("team-a")``, and ``job.add_mesh("trainers", 2, image_spec=...)``.

    ``timeout`` is how many seconds pods may take to be scheduled; ``None`` is no limit.
    ``kubeconfig`` is by default the user's own, and inside the cluster the pod's. A pod that is
    being deleted has ``grace_seconds`` left; its users are warned and may save. ``python_exe`` is
    the Python in the image. ``env`` is added to the pods' environment, ``preload`` names modules
    that each host imports ahead.

    If this machine does not reach the pods, all messages pass through a ``kubectl exec`` into the
    first pod. ``attach_to`` names another, as MESH-RANK, or any pod of the namespace that has a
    Python and reaches the others.
    """

    kind = "kubernetes"
    _KEPT = ("namespace", "timeout", "attach_to", "python_exe", "grace_seconds")

    def __init__(
        self,
        namespace: str,
        timeout: float | None = None,
        kubeconfig: KubeConfig | None = None,
        attach_to: str | None = None,
        *,
        python_exe: str = "python3",
        grace_seconds: int = _GRACE_SECONDS,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__({}, env, preload)
        self.attach_to = attach_to
        self.namespace = namespace
        self.timeout = timeout
        self.kubeconfig = kubeconfig or KubeConfig()
        self.python_exe = python_exe
        self.grace_seconds = grace_seconds
        self._pods: dict[str, PodMesh] = {}
        #: The value of the label of all its objects; "" without an allocation.
        self._allocation = ""
        #: The kind of the objects that make pods: "StatefulSet" or "MonarchMesh".
        self._owner_kind = "StatefulSet"
        #: The context of the kubeconfig file in which the job was made.
        self._context = ""
        #: Whether messages pass through a pod; ``None`` if it is not known yet.
        self._is_outside: bool | None = None
        #: The hosts' containers, by the names of their pods.
        self._containers: dict[str, str] = {}

    def add_mesh(
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = _RANK_LABEL,
        image_spec: ImageSpec | None = None,
        port: int = 26600,
        pod_template: Any = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Add a mesh of ``num_replicas`` pods.

        They are made from ``image_spec``, or from ``pod_template`` (data, or a model of the client
        library), whose container ``worker``, or first one, becomes the host. With neither of them,
        the job attaches to running pods: those of ``label_selector``, by default the labels that
        Monarch gives a mesh of this name. The label ``pod_rank_label`` has a pod's rank; without
        it, the number at the end of the pod's name is the rank. Raises ``ValueError`` for an
        invalid name, and for arguments that exclude each other.
        """
        makes = image_spec is not None or pod_template is not None
        longest = _MAX_NAME if makes else _MAX_LABEL
        if not _NAME.fullmatch(name) or len(name) > longest:
            raise ValueError(
                f"{name!r} cannot be a mesh's name in Kubernetes: a small letter, then small "
                f"letters, digits and '-', at most {longest} of them (RFC 1035)"
            )
        if image_spec is not None and pod_template is not None:
            raise ValueError(f"mesh {name!r}: either image_spec or pod_template")
        if makes and (label_selector is not None or pod_rank_label != _RANK_LABEL):
            parameter = "label_selector" if label_selector is not None else "pod_rank_label"
            raise ValueError(f"mesh {name!r}: {parameter} is for pods that are there already")
        if not makes and (labels or annotations):
            parameter = "labels" if labels else "annotations"
            raise ValueError(f"mesh {name!r}: {parameter} are for pods that the job makes")
        template: Manifest = {}
        if image_spec is not None:
            template = manifests.image_template(*image_spec)
        elif pod_template is not None:
            template = _as_template(pod_template, name)
        self._add(name, num_replicas)
        default = ",".join(f"{k}={v}" for k, v in (NAME_LABEL | {MESH_LABEL: name}).items())
        self._pods[name] = PodMesh(
            num_hosts=num_replicas,
            port=port,
            template=template,
            selector=label_selector or default,
            rank_label=pod_rank_label,
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
        )

    def _command(self, port: int) -> list[str]:
        """Return the command of a host; a Python without monarch waits for a bundle."""
        return [self.python_exe, *python_arguments("monarch.runtime.entry.pod_task", port)]

    @property
    def _made(self) -> dict[str, PodMesh]:
        """Return the meshes whose pods this job makes, and ends."""
        return {name: mesh for name, mesh in self._pods.items() if mesh.template}

    def _full_name(self, mesh: str) -> str:
        """Return the mesh's name in the cluster, which no other job's mesh has."""
        return f"{mesh}-{self._allocation}"

    def render(self, *, with_operator: bool = False) -> list[Manifest]:
        """Return the manifests that are sent to the API server, in this order.

        ``with_operator``: the pods are made by Monarch's operator, from a MonarchMesh for each
        mesh. Otherwise each mesh has a service and a StatefulSet.
        """
        allocation = {ALLOCATION_LABEL: self._allocation, **NAME_LABEL}
        secret_name = f"monarch-{self._allocation}"
        rendered = [manifests.secret(secret_name, self._secret.hex(), allocation)]
        for name, mesh in self._made.items():
            full = self._full_name(name)
            labels = {**allocation, MESH_LABEL: full}
            template = manifests.pod_template(
                mesh, labels, secret_name, self.env, self._command(mesh.port), self.grace_seconds
            )
            if with_operator:
                rendered.append(manifests.monarch_mesh(full, mesh, template))
            else:
                rendered.append(manifests.headless_service(full, mesh, labels))
                rendered.append(manifests.stateful_set(full, mesh, template))
        return rendered if self._made else []

    def _begin(self, client_script: str | None) -> None:
        self._refuse_script(client_script)
        if not self._pods:
            raise JobError("the job has no meshes: `add_mesh(name, num_replicas, ...)`")
        self._allocation = new_uid()[:8].lower()
        with self._api() as api:
            self._context = api.context
            secrets = {
                self._secret_of(api, pod)
                for name, mesh in self._pods.items()
                if not mesh.template
                for pod in api.pods(self._selector(name))
            }
            if len(secrets) > 1:
                raise JobError("the pods of this job's meshes do not have the same job secret")
            self._secret = secrets.pop() if secrets else job_secret()
            self._owner_kind = "MonarchMesh" if self._made and api.has_operator() else "StatefulSet"

    def _create(self, client_script: str | None) -> None:
        with self._api() as api:
            for manifest in self.render(with_operator=self._owner_kind == "MonarchMesh"):
                api.create(manifest)

    def _config(self) -> KubeConfig:
        return self.kubeconfig.pinned(self._context) if self._context else self.kubeconfig

    def _api(self) -> KubeApi:
        return KubeApi(self._config(), self.namespace)

    def _gateway_login(self) -> GatewayLogin | None:
        """Return the login to the gateway pod, by the user's own kubectl; ``None`` if none is
        needed."""
        if not self._hosts:
            return None
        if self._is_outside is None:
            self._is_outside = self.attach_to is not None or (
                not self.kubeconfig.is_in_cluster and not is_in_reach(self._hosts[0].url)
            )
        if not self._is_outside:
            return None
        pods: dict[str, str] = {}
        for mesh in self._pods:
            names = [host.name for host in self._hosts if host.mesh == mesh]
            pods |= {f"{mesh}-{rank}": name for rank, name in enumerate(names)}
        pod = pods.get(self.attach_to or "", self.attach_to or self._hosts[0].name)
        container = self._containers.get(pod)
        command = [*self._config().kubectl(), "-n", self.namespace, "exec", "-i", pod]
        command += ["-c", container] if container else []
        command += ["--", "sh", "-c"]
        return GatewayLogin(pod, command, self.python_exe if container else "python3")

    def _selector(self, mesh: str) -> str:
        if self._pods[mesh].template:
            return f"{MESH_LABEL}={self._full_name(mesh)}"
        return self._pods[mesh].selector

    def _secret_of(self, api: KubeApi, pod: Manifest) -> bytes:
        """Return the secret that the host of an existing pod requires."""
        name, worker = pod["metadata"]["name"], manifests.worker_of(pod)
        variables = {variable["name"]: variable for variable in worker.get("env") or ()}
        variable = variables.get(SECRET_VARIABLE, {})
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference is not None:
            text = api.secret(reference["name"], reference["key"])
        elif "value" in variable:
            text = variable["value"]
        else:
            raise JobError(
                f"the pod {name} has no {SECRET_VARIABLE}: give its container one from a Secret "
                "(docs/allocations.md has a manifest)"
            )
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES:
            raise JobError(
                f"the {SECRET_VARIABLE} of pod {name} must be {2 * SECRET_BYTES} hexadecimal "
                f"digits; make them with `openssl rand -hex {SECRET_BYTES}`"
            )
        return secret

    def _place(self) -> list[PlacedHost]:
        with self._api() as api:

            def look() -> tuple[list[PlacedHost], str]:
                hosts, waiting = self._look(api)
                return hosts, waiting and f"{self._title()}: {waiting}"

            return wait_for_place(look, self.timeout)

    def _has_moved(self) -> bool:
        with self._api() as api:
            try:
                hosts, waiting = self._look(api)
            except JobError:
                return True  # The next wait for the pods raises it.
        return bool(waiting) or [host.url for host in hosts] != self.urls()

    def _look(self, api: KubeApi) -> tuple[list[PlacedHost], str]:
        """Return the hosts that are running, and why the first missing one waits.

        The reason is "" if none is missing.
        """
        hosts, waits = [], []
        for name, mesh in self._pods.items():
            pods = by_rank(name, mesh, api.pods(self._selector(name)))
            for rank in range(mesh.num_hosts):
                pod = pods.get(rank)
                if pod is None:
                    waits.append(self._why_absent(api, name, rank))
                elif reason := why_waiting(api, pod, self._has_been_up):
                    waits.append(reason)
                else:
                    url = f"tcp://{pod['status']['podIP']}:{port_of(pod, mesh.port)}"
                    hosts.append(PlacedHost(name, pod["metadata"]["name"], url))
                    self._containers[hosts[-1].name] = str(manifests.worker_of(pod)["name"])
        return hosts, waits[0] if waits else ""

    def _why_absent(self, api: KubeApi, mesh: str, rank: int) -> str:
        if not self._pods[mesh].template:
            return f"no pod of rank {rank} has the labels {self._selector(mesh)}"
        full = self._full_name(mesh)
        if not api.exists(self._owner_kind, full):
            raise JobError(f"{self._owner_kind} {full} in {self.namespace} has been deleted")
        if refused := api.refusals(full):
            raise JobError(f"Kubernetes makes no pods for {full}: {refused}")
        return f"there is no pod {full}-{rank} yet"

    def _title(self) -> str:
        names = ", ".join(map(self._full_name, self._made)) or ", ".join(self._pods)
        return f"{names} in the namespace {self.namespace}"

    def _is_kept(self) -> bool:
        if not self._allocation:
            return False
        with self._api() as api:
            if self._made:
                names = map(self._full_name, self._made)
                return all(api.exists(self._owner_kind, name) for name in names)
            return all(api.pods(self._selector(name)) for name in self._pods)

    def _last_words(self) -> str:
        text = ""
        with self._api() as api:
            for host in self._hosts:
                tail = api.log(host.name, "", before=False)
                text += f"\nthe last lines of pod {host.name}:\n{tail}" if tail else ""
        return text

    def _kill(self) -> None:
        """Delete the job's objects, and wait until they are gone. Pods that others made stay."""
        self._forget_links()
        if self._allocation and self._made:
            with self._api() as api:
                api.delete_allocation(self._allocation)
                deadline = time.monotonic() + _GONE_SECONDS
                while remaining := api.left_of(self._allocation):
                    if time.monotonic() > deadline:
                        raise JobError(
                            f"still there {_GONE_SECONDS:.0f} s after they were deleted: "
                            f"{', '.join(remaining)} in the namespace {self.namespace}. Try again, "
                            "or `kubectl delete all,secret -l "
                            f"{ALLOCATION_LABEL}={self._allocation}`"
                        )
                    time.sleep(SHORTEST_LOOK_SECONDS)
        self._hosts, self._is_outside = [], None
        self._allocation = ""

    def _wanted(self) -> dict[str, Any]:
        pods = {name: mesh._asdict() for name, mesh in self._pods.items()}
        return super()._wanted() | {"pods": pods, "kubeconfig": self.kubeconfig.to_data()}

    def _placement(self) -> dict[str, Any]:
        names = ("_allocation", "_owner_kind", "_context", "_containers")
        # False is not kept: another machine may not reach the pods.
        return {name: getattr(self, name) for name in names} | {
            "_is_outside": self._is_outside or None
        }

    @classmethod
    def _made_of(cls: type[Self], wanted: dict[str, Any]) -> Self:
        pods, _ = wanted.pop("pods"), wanted.pop("meshes")
        job = cls(**wanted | {"kubeconfig": KubeConfig(**wanted["kubeconfig"])})
        for name, fields in pods.items():
            job._pods[name] = PodMesh(**fields)
            job._add(name, job._pods[name].num_hosts)
        return job


def _as_template(data: Any, name: str) -> Manifest:
    """Return a pod template, from one as data or as a model of the client library.

    A pod's spec alone is accepted too. Raises ``ValueError`` if it has no containers.
    """
    if not isinstance(data, Mapping):
        from kubernetes import client

        data = client.ApiClient().sanitize_for_serialization(data)
    template: Manifest = dict(data) if "spec" in data else {"spec": dict(data)}
    if not template["spec"].get("containers"):
        raise ValueError(f"mesh {name!r}: pod_template has no containers")
    return template
