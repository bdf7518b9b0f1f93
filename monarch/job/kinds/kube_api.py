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
from typing import Any

from monarch.errors import JobError
from monarch.job.kinds.kube_manifests import (
    ALLOCATION_LABEL,
    CRD_GROUP,
    CRD_PLURAL,
    CRD_VERSION,
    Manifest,
)

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
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
        # Not at the first look at a cluster, as the client library does, but now.
        if path is None and config is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
            path = os.environ.get("KUBECONFIG") or "~/.kube/config"
        places = [] if path is None else path.split(os.pathsep)
        whole = [os.path.abspath(os.path.expanduser(place)) for place in places if place]
        self.path = os.pathsep.join(whole) or None
        self.config = None if config is None else dict(config)
        self.context = context

    @classmethod
    def from_path(cls, path: str, context: str | None = None) -> KubeConfig:
        """Use the API server and user of a kubeconfig file."""
        return cls(path=path, context=context)

    @classmethod
    def from_config(cls, config: Any, context: str | None = None) -> KubeConfig:
        """Use the API server and user of a mapping with the contents of a kubeconfig file.

        Or of a ``kubernetes.client.Configuration``, with the token that it has now.
        """
        mapping = config if isinstance(config, Mapping) else _kubeconfig_of(config)
        return cls(config=mapping, context=context)

    def pinned(self, context: str) -> KubeConfig:
        """Return the same configuration in one of its contexts."""
        return KubeConfig(self.path, self.config, context)

    @property
    def is_in_cluster(self) -> bool:
        """Whether it is the configuration of the pod in which this program runs."""
        return self.path is None and self.config is None

    @property
    def out_of_cluster(self) -> bool:
        """Whether it is not the configuration of the pod in which this program runs."""
        return not self.is_in_cluster

    def kubectl(self) -> list[str]:
        """Return the kubectl command for the same API server and user. Raises ``JobError``."""
        if shutil.which("kubectl") is None:
            raise JobError(
                "this machine does not reach the pods themselves, and has no `kubectl` on the path "
                "to go through one of them: install it, or run this in a pod of the cluster"
            )
        # Plain JSON is YAML, too.
        path = self.path if self.config is None else _as_file(json.dumps(self.config))
        words = ["kubectl"] if path is None else ["env", f"KUBECONFIG={path}", "kubectl"]
        return [*words, "--context", self.context] if self.context else words

    def to_data(self) -> dict[str, Any]:
        """Return the settings as JSON data, with the credentials of a mapping, but not those of a
        file."""
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
        "token": token.removeprefix("Bearer "), "client-certificate": configuration.cert_file,
        "client-key": configuration.key_file,
    }  # fmt: skip
    name = "given"
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {k: v for k, v in cluster.items() if v}}],
        "users": [{"name": name, "user": {k: v for k, v in user.items() if v}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }  # fmt: skip


@functools.cache
def _as_file(text: str) -> str:
    """Write the text to a file that only its owner may read, until this program ends."""
    with tempfile.NamedTemporaryFile("w", prefix="monarch-kube-", delete=False) as file:
        file.write(text)

    def remove() -> None:
        with contextlib.suppress(OSError):
            os.unlink(file.name)

    atexit.register(remove)
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
        found = client.Configuration()
        self.context = ""  # of the file that it is from
        try:
            if settings.config is not None:
                config.load_kube_config_from_dict(
                    settings.config, settings.context, client_configuration=found
                )
            elif settings.path is None:
                config.load_incluster_config(client_configuration=found)
            else:
                # Others may choose another context in the file while a job of this one runs.
                context = settings.context or config.list_kube_config_contexts(settings.path)[1]
                self.context = context if isinstance(context, str) else str(context["name"])
                config.load_kube_config(settings.path, self.context, client_configuration=found)
        except (config.ConfigException, OSError, TypeError, ValueError) as error:
            raise JobError(
                f"cannot use the kubeconfig {settings.path}: {error}. Name one with "
                "KUBECONFIG, or with `kubeconfig`; inside the cluster none is needed"
            ) from None
        found.retries = 0
        self.namespace = namespace
        self.server = found.host
        api = client.ApiClient(found)
        self._close = api.close
        self._core, self._apps = client.CoreV1Api(api), client.AppsV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._version, self._rights = client.VersionApi(api), client.AuthorizationV1Api(api)
        self._plain: Callable[[Any], Any] = api.sanitize_for_serialization

    def __enter__(self) -> KubeApi:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._close()

    def plain(self, model: Any) -> Any:
        """Return a model of the client library as plain data."""
        return self._plain(model)

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._ask(self._version.get_code)["gitVersion"])

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether this user may do ``verb`` with such resources in the namespace."""
        resource, _, part = resource.partition("/")
        asked = {
            "namespace": self.namespace, "verb": verb, "group": group, "resource": resource,
            "subresource": part,
        }  # fmt: skip
        review = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }  # fmt: skip
        answer = self._ask(self._rights.create_self_subject_access_review, review)
        return bool(answer["status"]["allowed"])

    def nodes(self) -> list[Manifest]:
        """Return the nodes of the cluster, if this user may list them."""
        return list(self._ask(self._core.list_node)["items"])

    def create(self, manifest: Manifest, *, is_trial: bool = False) -> None:
        """Create an object; raise ``JobError`` if one of its name exists. ``is_trial`` makes a dry
        run."""
        trial = {"dry_run": "All"} if is_trial else {}
        kind, core, apps = manifest["kind"], self._core, self._apps
        if kind == "MonarchMesh":
            self._ask(
                self._custom.create_namespaced_custom_object,
                CRD_GROUP, CRD_VERSION, self.namespace, CRD_PLURAL, manifest, **trial,
            )  # fmt: skip
            return
        order = {
            "Pod": core.create_namespaced_pod,
            "Secret": core.create_namespaced_secret,
            "Service": core.create_namespaced_service,
            "StatefulSet": apps.create_namespaced_stateful_set,
        }[kind]
        self._ask(order, self.namespace, manifest, **trial)

    def has_operator(self) -> bool:
        """Whether the cluster has the MonarchMesh resource, and this user may list it."""
        try:
            self._ask(
                self._custom.list_namespaced_custom_object,
                CRD_GROUP, CRD_VERSION, self.namespace, CRD_PLURAL, limit=1,
            )  # fmt: skip
        except _Refused:
            return False
        return True

    def exists(self, kind: str, name: str) -> bool:
        """Whether a StatefulSet, or a MonarchMesh, of that name exists and is not being deleted."""
        try:
            if kind == "MonarchMesh":
                found = self._ask(
                    self._custom.get_namespaced_custom_object,
                    CRD_GROUP, CRD_VERSION, self.namespace, CRD_PLURAL, name,
                )  # fmt: skip
            else:
                found = self._ask(self._apps.read_namespaced_stateful_set, name, self.namespace)
        except _Refused as error:
            if error.status == 404:
                return False
            raise
        return "deletionTimestamp" not in found["metadata"]

    def pods(self, selector: str) -> list[Manifest]:
        """Return the pods that the label selector matches."""
        found = self._ask(self._core.list_namespaced_pod, self.namespace, label_selector=selector)[
            "items"
        ]
        return list(found)

    def refusals(self, owner: str) -> str:
        """Return the last message of why the controller of ``owner`` could not create pods."""
        events = self._ask(
            self._core.list_namespaced_event, self.namespace,
            field_selector=f"involvedObject.name={owner},reason=FailedCreate",
        )["items"]  # fmt: skip
        return str(events[-1]["message"]) if events else ""

    def log(self, pod: str, container: str, *, before: bool) -> str:
        """Return the last lines that a container, or its previous run with ``before``, has
        printed."""
        try:
            done = self._core.read_namespaced_pod_log(
                pod, self.namespace, container=container, previous=before, tail_lines=_TAIL_LINES,
                _preload_content=False, _request_timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS),
            )  # fmt: skip
            text: str = done.data.decode(errors="replace")
            return text.rstrip()
        except Exception:
            return ""  # It is an extra: what went wrong is told in any case.

    def secret(self, name: str, key: str) -> str:
        """Return the text under ``key`` in a Secret. Raises ``JobError`` if it is missing."""
        found = self._ask(self._core.read_namespaced_secret, name, self.namespace)
        try:
            return base64.b64decode(found["data"][key]).decode()
        except (KeyError, ValueError):
            raise JobError(f"the Secret {name} has no {key!r}") from None

    def delete_allocation(self, allocation: str) -> None:
        """Delete all objects with this allocation's label; objects that are gone already are no
        error."""
        selector = f"{ALLOCATION_LABEL}={allocation}"
        core, apps, custom = self._core, self._apps, self._custom
        with contextlib.suppress(_NotThere):
            meshes = self._ask(
                custom.list_namespaced_custom_object,
                CRD_GROUP, CRD_VERSION, self.namespace, CRD_PLURAL, label_selector=selector,
            )["items"]  # fmt: skip
            for mesh in meshes:
                with contextlib.suppress(_NotThere):
                    self._ask(
                        custom.delete_namespaced_custom_object,
                        CRD_GROUP, CRD_VERSION, self.namespace, CRD_PLURAL,
                        mesh["metadata"]["name"],
                    )  # fmt: skip
        for listed, delete in (
            (apps.list_namespaced_stateful_set, apps.delete_namespaced_stateful_set),
            (core.list_namespaced_service, core.delete_namespaced_service),
            (core.list_namespaced_secret, core.delete_namespaced_secret),
        ):
            for one in self._ask(listed, self.namespace, label_selector=selector)["items"]:
                with contextlib.suppress(_NotThere):
                    self._ask(
                        delete, one["metadata"]["name"], self.namespace,
                        propagation_policy="Background",
                    )  # fmt: skip
        for pod in self.pods(selector):
            with contextlib.suppress(_NotThere):
                # The end of a job does not wait until running programs have saved.
                self._ask(
                    core.delete_namespaced_pod, pod["metadata"]["name"], self.namespace,
                    grace_period_seconds=_end_seconds(pod),
                )  # fmt: skip

    def left_of(self, allocation: str) -> list[str]:
        """Return the objects of an allocation that still exist, as "kind name"."""
        selector = f"{ALLOCATION_LABEL}={allocation}"
        found = []
        for kind, listed in (
            ("pod", self._core.list_namespaced_pod),
            ("StatefulSet", self._apps.list_namespaced_stateful_set),
            ("service", self._core.list_namespaced_service),
            ("secret", self._core.list_namespaced_secret),
        ):
            for one in self._ask(listed, self.namespace, label_selector=selector)["items"]:
                found.append(f"{kind} {one['metadata']['name']}")
        return found

    def _ask(self, order: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        plain_answer = {} if order.__self__ is self._custom else {"_preload_content": False}  # type: ignore[attr-defined]  # a method
        try:
            done = order(
                *args, **kwargs, **plain_answer,
                _request_timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS),
            )  # fmt: skip
            return done if not plain_answer else json.loads(done.data)
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

    It is 0 if no container has its image: nothing runs, and the node's clean-up need not be waited
    for.
    """
    statuses = pod["status"].get("containerStatuses", ())
    reasons = [one.get("state", {}).get("waiting", {}).get("reason", "") for one in statuses]
    has_none = reasons and all(reason in _WITHOUT_IMAGE for reason in reasons)
    return 0 if has_none else _END_SECONDS


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
