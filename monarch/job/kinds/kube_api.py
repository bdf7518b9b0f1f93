"""One namespace of a Kubernetes API server: requests, and its refusals in its own words."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monarch.errors import JobError
from monarch.job.kinds.kube_manifests import (
    ALLOCATION_LABEL,
    CRD_GROUP,
    CRD_PLURAL,
    CRD_VERSION,
    Manifest,
)

_TIMEOUT = 5.0, 30.0  # seconds to connect, and to get an answer
_END_SECONDS = 1
_WITHOUT_IMAGE = {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
_TAIL_LINES = 8


class KubeConfig:
    """An API server and its user: a kubeconfig file, or the contents of one."""

    def __init__(
        self,
        path: str | None = None,
        config: Mapping[str, Any] | None = None,
        context: str | None = None,
    ) -> None:
        # The environment is read now; the client library would do it later.
        if path is None and config is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
            path = os.environ.get("KUBECONFIG") or "~/.kube/config"
        parts = (path or "").split(os.pathsep)
        paths = [os.path.abspath(os.path.expanduser(part)) for part in parts if part]
        self.path = os.pathsep.join(paths) or None
        self.config = None if config is None else dict(config)
        self.context = context

    @classmethod
    def from_path(cls, path: str, context: str | None = None) -> KubeConfig:
        """Return the configuration for the API server and the user of a kubeconfig file.

        ``context`` is the context to use; None: the file's ``current-context``.
        """
        return cls(path=path, context=context)

    @classmethod
    def from_config(cls, config: Any, context: str | None = None) -> KubeConfig:
        """Return the configuration in ``config``: a mapping with the contents of a kubeconfig file,
        or a ``kubernetes.client.Configuration``, of which the present token is kept.

        ``context`` is the kubeconfig context to use; None: its ``current-context``.
        """
        mapping = config if isinstance(config, Mapping) else _kubeconfig_of(config)
        return cls(config=mapping, context=context)

    def pinned(self, context: str) -> KubeConfig:
        """Return this configuration with ``context`` as the kubeconfig's context."""
        return KubeConfig(self.path, self.config, context)

    @property
    def is_in_cluster(self) -> bool:
        """Whether the configuration is that of the pod in which this program runs."""
        return self.path is None and self.config is None

    @property
    def out_of_cluster(self) -> bool:
        """Whether the configuration is another than that of the pod in which this program runs."""
        return not self.is_in_cluster

    def kubectl(self) -> list[str]:
        """Return the kubectl command for the same API server and user.

        Raises ``JobError`` if kubectl is not installed.
        """
        if shutil.which("kubectl") is None:
            raise JobError(
                "this machine does not reach the pods themselves, and has no `kubectl` on the path "
                "to go through one of them: install it, or run this in a pod of the cluster"
            )
        # JSON is valid YAML.
        path = self.path if self.config is None else _as_file(json.dumps(self.config))
        command = ["kubectl"] if path is None else ["env", f"KUBECONFIG={path}", "kubectl"]
        return [*command, "--context", self.context] if self.context else command

    def to_data(self) -> dict[str, Any]:
        """Return the settings as JSON data. They include credentials from a mapping, but not from
        a file."""
        return {"path": self.path, "config": self.config, "context": self.context}


def _kubeconfig_of(configuration: Any) -> dict[str, Any]:
    """Return a configuration of the client library as the contents of a kubeconfig file.

    Raises ``TypeError`` for other objects.
    """
    if not hasattr(configuration, "ssl_ca_cert"):
        raise TypeError(
            "from_config takes a mapping, as a kubeconfig file has, or a "
            f"kubernetes.client.Configuration, not {type(configuration).__name__}"
        )
    keys = configuration.api_key
    token = keys.get("BearerToken") or keys.get("authorization") or ""
    cluster = {
        "server": configuration.host,
        "certificate-authority": configuration.ssl_ca_cert,
        "insecure-skip-tls-verify": not configuration.verify_ssl,
    }
    user = {
        "token": token.removeprefix("Bearer "),
        "client-certificate": configuration.cert_file,
        "client-key": configuration.key_file,
    }
    name = "given"
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {k: v for k, v in cluster.items() if v}}],
        "users": [{"name": name, "user": {k: v for k, v in user.items() if v}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }  # fmt: skip


@functools.cache
def _as_file(text: str) -> str:
    """Write the text to a file that only its owner may read; return the path.

    The file is removed when this program ends.
    """
    with tempfile.NamedTemporaryFile("w", prefix="monarch-kube-", delete=False) as file:
        file.write(text)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


class KubeApi:
    """A client of the API server. Answers are plain data; errors are ``JobError`` in the server's
    words."""

    def __init__(self, settings: KubeConfig, namespace: str) -> None:
        try:
            from kubernetes import client, config
        except ImportError:
            raise JobError(
                "a job of kind kubernetes needs Kubernetes' client library: "
                "pip install 'monarch-loop[kubernetes]'"
            ) from None
        loaded = client.Configuration()
        #: The context of the kubeconfig file; "" without a file.
        self.context = ""
        try:
            if settings.config is not None:
                config.load_kube_config_from_dict(
                    settings.config, settings.context, client_configuration=loaded
                )
            elif settings.path is None:
                config.load_incluster_config(client_configuration=loaded)
            else:
                # The current context of the file may change while a job of this one runs.
                context = settings.context or config.list_kube_config_contexts(settings.path)[1]
                self.context = context if isinstance(context, str) else str(context["name"])
                config.load_kube_config(settings.path, self.context, client_configuration=loaded)
        except (config.ConfigException, OSError, TypeError, ValueError) as error:
            raise JobError(
                f"cannot use the kubeconfig {settings.path}: {error}. Name one with "
                "KUBECONFIG, or with `kubeconfig`; inside the cluster none is needed"
            ) from None
        loaded.retries = 0
        self.namespace = namespace
        self.server = loaded.host
        self._client: Any = client.ApiClient(loaded)
        #: The client library's objects for groups of requests.
        self._core = client.CoreV1Api(self._client)
        self._apps = client.AppsV1Api(self._client)
        self._custom = client.CustomObjectsApi(self._client)
        self._version = client.VersionApi(self._client)
        self._rights = client.AuthorizationV1Api(self._client)
        #: The first arguments of requests about MonarchMesh objects.
        self._mesh_resource = CRD_GROUP, CRD_VERSION, namespace, CRD_PLURAL

    def __enter__(self) -> KubeApi:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._client.close()

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._ask(self._version.get_code)["gitVersion"])

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether this user may do ``verb`` with a ``resource`` of the API ``group``.

        It is asked for the job's namespace. A subresource is given as ``RESOURCE/SUBRESOURCE``.
        """
        resource, _, part = resource.partition("/")
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._ask(self._rights.create_self_subject_access_review, review)
        return bool(answer["status"]["allowed"])

    def nodes(self) -> list[Manifest]:
        """Return the nodes of the cluster. Raises ``JobError`` if this user may not list them."""
        return list(self._ask(self._core.list_node)["items"])

    def create(self, manifest: Manifest, *, is_trial: bool = False) -> None:
        """Create an object; raise ``JobError`` if one of its name exists. ``is_trial`` makes a dry
        run."""
        trial = {"dry_run": "All"} if is_trial else {}
        kind, core, apps, custom = manifest["kind"], self._core, self._apps, self._custom
        if kind == "MonarchMesh":
            create = custom.create_namespaced_custom_object
            self._ask(create, *self._mesh_resource, manifest, **trial)
            return
        create = {
            "Pod": core.create_namespaced_pod,
            "Secret": core.create_namespaced_secret,
            "Service": core.create_namespaced_service,
            "StatefulSet": apps.create_namespaced_stateful_set,
        }[kind]
        self._ask(create, self.namespace, manifest, **trial)

    def has_operator(self) -> bool:
        """Whether the cluster has the MonarchMesh resource, and this user may list it."""
        try:
            self._ask(self._custom.list_namespaced_custom_object, *self._mesh_resource, limit=1)
        except _Refused:
            return False
        return True

    def exists(self, kind: str, name: str) -> bool:
        """Whether a StatefulSet, or a MonarchMesh, of that name exists and is not being deleted."""
        try:
            if kind == "MonarchMesh":
                get = self._custom.get_namespaced_custom_object
                manifest = self._ask(get, *self._mesh_resource, name)
            else:
                manifest = self._ask(self._apps.read_namespaced_stateful_set, name, self.namespace)
        except _Refused as error:
            if error.status == 404:
                return False
            raise
        return "deletionTimestamp" not in manifest["metadata"]

    def pods(self, selector: str) -> list[Manifest]:
        """Return the pods that the label selector matches."""
        return self._list(self._core.list_namespaced_pod, label_selector=selector)

    def refusals(self, owner: str) -> str:
        """Return the last message about pods that the controller of ``owner`` could not create.

        "" if there is none.
        """
        selector = f"involvedObject.name={owner},reason=FailedCreate"
        events = self._list(self._core.list_namespaced_event, field_selector=selector)
        return str(events[-1]["message"]) if events else ""

    def log(self, pod: str, container: str, *, before: bool) -> str:
        """Return the last lines that a container has printed; "" if there is no log.

        With ``before`` they are those of the container's previous run.
        """
        try:
            response = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                previous=before,
                tail_lines=_TAIL_LINES,
                _preload_content=False,
                _request_timeout=_TIMEOUT,
            )
            text: str = response.data.decode(errors="replace")
            return text.rstrip()
        except Exception:
            return ""  # The error is reported also without a log.

    def secret(self, name: str, key: str) -> str:
        """Return the text under ``key`` in a Secret. Raises ``JobError`` if it is missing."""
        manifest = self._ask(self._core.read_namespaced_secret, name, self.namespace)
        try:
            return base64.b64decode(manifest["data"][key]).decode()
        except (KeyError, ValueError):
            raise JobError(f"the Secret {name} has no {key!r}") from None

    def delete_allocation(self, allocation: str) -> None:
        """Delete all objects with this allocation's label; objects that are gone already are no
        error."""
        selector = f"{ALLOCATION_LABEL}={allocation}"
        core, apps, custom = self._core, self._apps, self._custom
        with contextlib.suppress(_NotThere):
            list_meshes = custom.list_namespaced_custom_object
            meshes = self._ask(list_meshes, *self._mesh_resource, label_selector=selector)
            for mesh in meshes["items"]:
                with contextlib.suppress(_NotThere):
                    delete = custom.delete_namespaced_custom_object
                    self._ask(delete, *self._mesh_resource, mesh["metadata"]["name"])
        for list_all, delete in (
            (apps.list_namespaced_stateful_set, apps.delete_namespaced_stateful_set),
            (core.list_namespaced_service, core.delete_namespaced_service),
            (core.list_namespaced_secret, core.delete_namespaced_secret),
        ):
            for manifest in self._list(list_all, label_selector=selector):
                self._delete(delete, manifest, propagation_policy="Background")
        for pod in self.pods(selector):
            # The end of a job does not wait until running programs have saved.
            self._delete(core.delete_namespaced_pod, pod, grace_period_seconds=_end_seconds(pod))

    def left_of(self, allocation: str) -> list[str]:
        """Return the objects of an allocation that still exist, as "kind name"."""
        selector = f"{ALLOCATION_LABEL}={allocation}"
        kinds = {
            "pod": self._core.list_namespaced_pod,
            "StatefulSet": self._apps.list_namespaced_stateful_set,
            "service": self._core.list_namespaced_service,
            "secret": self._core.list_namespaced_secret,
        }
        return [
            f"{kind} {manifest['metadata']['name']}"
            for kind, list_all in kinds.items()
            for manifest in self._list(list_all, label_selector=selector)
        ]

    def _list(self, list_all: Callable[..., Any], **selector: str) -> list[Manifest]:
        return list(self._ask(list_all, self.namespace, **selector)["items"])

    def _delete(self, delete: Callable[..., Any], manifest: Manifest, **options: Any) -> None:
        with contextlib.suppress(_NotThere):
            self._ask(delete, manifest["metadata"]["name"], self.namespace, **options)

    def _ask(self, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Send a request by a method of the client library; return the answer as plain data."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        if request.__self__ is not self._custom:  # type: ignore[attr-defined]  # a method
            kwargs["_preload_content"] = False
        try:
            answer = request(*args, **kwargs, _request_timeout=_TIMEOUT)
            return json.loads(answer.data) if "_preload_content" in kwargs else answer
        except ApiException as error:
            refused = _NotThere if error.status == 404 else _Refused
            raise refused(_words(error), error.status) from None
        except (HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise JobError(
                f"cannot reach the Kubernetes API server at {self.server}: {reason}"
            ) from None


def _end_seconds(pod: Manifest) -> int:
    """Return how many seconds a pod may take to end.

    0 if its containers only wait for their images: then nothing runs in it.
    """
    statuses = pod["status"].get("containerStatuses", ())
    reasons = {status.get("state", {}).get("waiting", {}).get("reason", "") for status in statuses}
    return 0 if reasons and reasons <= _WITHOUT_IMAGE else _END_SECONDS


class _Refused(JobError):
    def __init__(self, words: str, status: int) -> None:
        super().__init__(f"Kubernetes refuses: {words}")
        self.status = status


class _NotThere(_Refused):
    """The object does not exist."""


def _words(error: Any) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(error.body)["message"])
    return f"{error.status} {error.reason}"
