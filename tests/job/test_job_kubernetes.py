"""Jobs of Kubernetes: what goes wrong, in the server's own words, and what is asked for."""

from __future__ import annotations

import builtins
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import ImageSpec, KubeConfig, KubernetesJob, job_load, job_loads
from monarch.job.doctor.clusters import of_kubernetes
from monarch.job.kinds.kube_manifests import image_template
from monarch.runtime.process import is_bootstrapped
from tests.actors import Echo
from tests.job.fakes.kube_server import KubeServer
from tests.job.kube_cluster import KubeCluster, pod_template
from tests.support import wait_for

AT_ONCE_SECONDS = 20.0
# Of what the kubelet says, which looks, pulls and starts at its own pace; no time-out of ours is as
# short.
REAL_AT_ONCE_SECONDS = 45.0


@pytest.fixture
def server() -> Iterator[KubeServer]:
    made = KubeServer()
    yield made
    made.close()
    if is_bootstrapped():
        shutdown_context().get()


def make(server: KubeServer, namespace: str = "default", image: str = "python") -> KubernetesJob:
    job = KubernetesJob(
        namespace, 30.0, KubeConfig.from_config(server.kubeconfig), python_exe=sys.executable
    )
    job.add_mesh("trainers", 2, image_spec=ImageSpec(image))
    return job


def refusal(job: KubernetesJob, seconds: float = AT_ONCE_SECONDS) -> str:
    import kubernetes  # noqa: F401  (it takes seconds, once)

    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        job.state(cached_path=None)
    assert time.monotonic() - began < seconds
    return str(caught.value)


def stored(server: KubeServer) -> list[str]:
    return [name for kind in server.stored.values() for _, name in kind if kind is not None]


@pytest.mark.long
def test_an_image_that_cannot_be_pulled(server: KubeServer) -> None:
    told = refusal(make(server, image="missing"))
    assert 'cannot start: ImagePullBackOff: Back-off pulling image "missing"' in told
    assert not stored(server)


@pytest.mark.long
def test_a_pod_that_crashes_is_told_of_with_its_last_words(server: KubeServer) -> None:
    job = make(server)
    job.env = {"MONARCH_HEARTBEAT_SECONDS": "soon"}
    told = refusal(job)
    assert "crashes: its container worker exits with status 1" in told
    assert "could not convert string to float: 'soon'" in told
    assert not stored(server)


@pytest.mark.long
def test_a_namespace_in_which_one_may_do_nothing(server: KubeServer) -> None:
    told = refusal(make(server, "forbidden"))
    assert 'User "dev" cannot' in told
    assert "cannot" in told
    assert not stored(server)


def test_a_quota_that_is_used_up(server: KubeServer) -> None:
    told = refusal(make(server, "full"))
    assert "exceeded quota: small" in told
    assert [name for _, name in server.stored["statefulsets"]] == []


def test_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    job = KubernetesJob("default")
    job.add_mesh("a", 1, image_spec=ImageSpec("python"))
    told = refusal(job)
    assert f"cannot use the kubeconfig {tmp_path}/nowhere" in told
    assert "KUBECONFIG" in told


def test_a_server_that_cannot_be_reached(server: KubeServer) -> None:
    config = server.kubeconfig
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    job = KubernetesJob("default", kubeconfig=KubeConfig.from_config(config))
    job.add_mesh("a", 1, image_spec=ImageSpec("python"))
    told = refusal(job)
    assert "cannot reach the Kubernetes API server at http://127.0.0.1:9" in told
    assert "refused" in told


def test_a_configuration_of_the_client_library(server: KubeServer, tmp_path: Path) -> None:
    from kubernetes import client, config

    given = server.kubeconfig
    authority = tmp_path / "ca.crt"
    authority.write_text("of whoever it is")
    given["users"][0]["user"] = {"token": "a secret", "client-key": str(authority)}
    given["clusters"][0]["cluster"] |= {
        "certificate-authority": str(authority), "insecure-skip-tls-verify": True,
    }  # fmt: skip
    wanted, found = client.Configuration(), client.Configuration()
    config.load_kube_config_from_dict(given, client_configuration=wanted)
    made = KubeConfig.from_config(wanted)
    assert made.out_of_cluster
    config.load_kube_config_from_dict(made.config, client_configuration=found)
    for name in ("host", "ssl_ca_cert", "verify_ssl", "api_key", "cert_file", "key_file"):
        assert getattr(found, name) == getattr(wanted, name), name
    job = KubernetesJob("default", 30.0, made, python_exe=sys.executable)
    again = job_loads(job.dumps())
    assert isinstance(again, KubernetesJob)
    assert again.kubeconfig.config == made.config
    with pytest.raises(TypeError, match="not str"):
        KubeConfig.from_config("/a/path")


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "kubernetes":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    job = KubernetesJob("default", kubeconfig=KubeConfig.from_config({}))
    job.add_mesh("a", 1, image_spec=ImageSpec("python"))
    with pytest.raises(JobError, match=r"pip install 'monarch-loop\[kubernetes\]'"):
        job.apply()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Trainers", {}, "RFC 1035"),
        ("1trainers", {}, "RFC 1035"),  # no name of a Service
        ("t" * 50, {"image_spec": ImageSpec("i")}, "at most 40"),
        ("t" * 64, {}, "at most 63"),
        ("a", {"labels": {"team": "a"}}, "labels are for pods that the job makes"),
        ("a", {"annotations": {"team": "a"}}, "annotations are for"),
        ("a", {"image_spec": ImageSpec("i"), "pod_rank_label": "r"}, "pod_rank_label is for"),
        ("a", {"image_spec": ImageSpec("i"), "pod_template": {"spec": {}}}, "either"),
        ("a", {"image_spec": ImageSpec("i"), "label_selector": "a=b"}, "already"),
        ("a", {"pod_template": {"spec": {}}}, "no containers"),
    ],
)
def test_meshes_that_cannot_be(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        KubernetesJob("default").add_mesh(name, 1, **options)


@pytest.mark.long
def test_attached_pods_go_on_when_the_job_is_killed(server: KubeServer, tmp_path: Path) -> None:
    maker = make(server)
    maker.state(cached_path=None)
    guest = KubernetesJob("default", 30.0, KubeConfig.from_config(server.kubeconfig))
    selector = f"monarch.pytorch.org/mesh-name=trainers-{maker._allocation}"
    guest.add_mesh("workers", 2, selector)
    path = tmp_path / "state.json"
    try:
        maker._forget_links()  # A host has one client at a time, which would be the same program.
        workers = guest.state(str(path)).workers
        echo = workers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(1).get(timeout=60).values() == [1, 1]
        assert job_load(path).is_running()
        guest.kill()
        assert len(server.stored["pods"]) == 2
        assert maker.is_running()
    finally:
        maker.kill()
    assert not stored(server)


def test_no_pods_to_attach_to(server: KubeServer) -> None:
    job = KubernetesJob("default", 0.2, KubeConfig.from_config(server.kubeconfig))
    job.add_mesh("workers", 2)
    told = refusal(job)
    assert "no pod of rank 0 has the labels app.kubernetes.io/name=monarch-worker" in told


def test_pods_without_a_secret_are_not_attached_to(server: KubeServer) -> None:
    server.answer("POST", "/api/v1/namespaces/default/pods", {
        "metadata": {"name": "w-0", "labels": {"mine": "yes"}}, "status": {},
        "spec": {"containers": [{"name": "worker", "image": "python"}]},
    })  # fmt: skip
    job = KubernetesJob("default", 1.0, KubeConfig.from_config(server.kubeconfig))
    job.add_mesh("workers", 1, "mine=yes")
    assert "the pod w-0 has no MONARCH_JOB_SECRET" in refusal(job)


@pytest.mark.long
def test_where_there_is_an_operator_it_makes_the_pods() -> None:
    server = KubeServer(has_operator=True)
    try:
        job = make(server)
        echo = job.state(cached_path=None).trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(2).get(timeout=60).values() == [2, 2]
        assert len(server.stored["monarchmeshes"]) == 1
        assert not server.stored["statefulsets"]
        job.kill()
        assert not stored(server)
    finally:
        server.close()
        shutdown_context().get()


@pytest.mark.long
def test_a_pod_that_is_deleted_comes_again_elsewhere(server: KubeServer, faults: Any) -> None:
    job = make(server)
    before = job.state(cached_path=None)
    names, urls = list(job.names_by_url().values()), job.urls()
    try:
        server.delete_pod(names[0], 0.0)
        wait_for(lambda: job.num_running() == 1, what="the loss")
        assert job.repair() == [names[0]]
        assert list(job.names_by_url().values()) == names
        assert job.urls()[0] != urls[0]
        assert job.urls()[1] == urls[1]
        echo = job.state(cached_path=None).trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(4).get(timeout=60).values() == [4, 4]
    finally:
        job.kill()
    del before


def test_an_image_with_bounded_shared_memory_and_with_fuse() -> None:
    plain = image_template("python", None)["spec"]
    assert plain["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    assert "securityContext" not in plain["containers"][0]
    job = KubernetesJob("default")
    job._allocation = "abc"
    job.add_mesh("a", 1, image_spec=ImageSpec("i", enable_fuse=True, shared_memory_size="2Gi"))
    [spec] = [
        one["spec"]["template"]["spec"] for one in job.render() if "template" in one.get("spec", {})
    ]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert volumes["fuse"]["hostPath"]["path"] == "/dev/fuse"
    [container] = spec["containers"]
    assert container["securityContext"] == {"privileged": True}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["fuse"] == "/dev/fuse"


def test_the_secret_is_in_no_state_of_the_pods_and_in_no_argument(server: KubeServer) -> None:
    job = make(server)
    job._allocation, job._secret = "abc", b"s" * 32
    secret, *rest = job.render()
    assert secret["kind"] == "Secret"
    assert job._secret.hex() in str(secret)
    assert job._secret.hex() not in str(rest)


def test_the_state_file_says_which_context_it_was(
    server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    path = tmp_path / "config"
    path.write_text(json.dumps(server.kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(path))
    job = KubernetesJob("default", 30.0, python_exe=sys.executable)
    job.add_mesh("a", 1, image_spec=ImageSpec("python"))
    job.apply()
    try:
        other = {**server.kubeconfig, "current-context": "nowhere"}
        path.write_text(json.dumps(other))
        assert job_loads(job.dumps()).is_running()
    finally:
        job.kill()


def test_manifests_are_valid_for_the_kubernetes_of_today() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    job = KubernetesJob("default")
    job.add_mesh("a", 2, image_spec=ImageSpec("python", {"nvidia.com/gpu": 8}), labels={"x": "y"})
    job.add_mesh("b", 1, pod_template=pod_template(), annotations={"n": "1"})
    job._allocation = "abc"
    for manifest in job.render():
        validate.validate(manifest, "1.31", strict=True)


@pytest.mark.system
def test_another_user_of_a_real_cluster_is_refused() -> None:
    cluster = KubeCluster.shared()
    job = KubernetesJob("default", 30.0, KubeConfig.from_path(str(cluster.other_user)))
    job.add_mesh("a", 1, pod_template=pod_template())
    assert 'User "dev" cannot' in refusal(job, REAL_AT_ONCE_SECONDS)


@pytest.mark.system
def test_a_real_cluster_has_not_that_many_gpus() -> None:
    cluster = KubeCluster.shared()
    config = KubeConfig.from_path(str(cluster.kubeconfig))
    job = KubernetesJob("default", 3.0, config)
    job.add_mesh("a", 1, image_spec=ImageSpec("python", {"nvidia.com/gpu": 64}))
    told = refusal(job, REAL_AT_ONCE_SECONDS)
    assert "Insufficient nvidia.com/gpu" in told
    with job._api() as api:
        assert not api.pods("")


@pytest.mark.system
def test_a_real_cluster_cannot_pull_an_image() -> None:
    cluster = KubeCluster.shared()
    config = KubeConfig.from_path(str(cluster.kubeconfig))
    job = KubernetesJob("default", 60.0, config)
    job.add_mesh("a", 1, image_spec=ImageSpec("127.0.0.1:1/nowhere:1"))
    told = refusal(job, REAL_AT_ONCE_SECONDS)
    assert "127.0.0.1:1/nowhere:1" in told
    assert "cannot start" in told


@pytest.mark.system
def test_a_real_pod_that_crashes() -> None:
    cluster = KubeCluster.shared()
    config = KubeConfig.from_path(str(cluster.kubeconfig))
    job = KubernetesJob("default", 60.0, config, python_exe=f"{os.sep}nowhere/python")
    job.add_mesh("a", 1, pod_template=pod_template())
    told = refusal(job, REAL_AT_ONCE_SECONDS)
    assert "crashes" in told
    assert "/nowhere/python" in told


@pytest.mark.system
def test_what_a_doctor_says_of_a_real_cluster() -> None:
    cluster = KubeCluster.shared()
    found = {}
    for user, path in (("admin", cluster.kubeconfig), ("dev", cluster.other_user)):
        job = KubernetesJob("default", 30.0, KubeConfig.from_path(str(path)))
        job.add_mesh("a", 1, image_spec=ImageSpec("python", {"nvidia.com/gpu": 64}))
        job.add_mesh("b", 2, pod_template=pod_template())
        found[user] = "\n".join(f"{one.level} {one.text}" for one in of_kubernetes(job))
    assert "ok it would take the job" in found["admin"]
    assert (
        "warning each pod of a wants nvidia.com/gpu 64, and the largest of its 1" in found["admin"]
    )
    assert "failure you may not create secrets" in found["dev"]
    job = KubernetesJob("nowhere", 30.0, KubeConfig.from_path(str(cluster.kubeconfig)))
    job.add_mesh("b", 2, pod_template=pod_template())
    told = "\n".join(one.text for one in of_kubernetes(job))
    assert 'namespaces "nowhere" not found' in told
    with job._api() as api:
        assert not api.pods("")
