"""A real Kubernetes of one node on this machine: API server, scheduler, kubelet, containers.

Its traffic stays on loopback and a bridge that it makes itself. Pods run this machine's Python,
which is mounted into them, on an image of one program. What it takes is found in the folder that
``MONARCH_KUBERNETES_BIN`` names, or where ``make kubernetes`` puts it (kube-apiserver,
kube-controller-manager, kube-scheduler and kubelet, of one version), and on the path (etcd,
containerd, runc, openssl, busybox).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from monarch.tools.network import free_port
from tests.support import wait_for

VARIABLE, _BUILT = "MONARCH_KUBERNETES_BIN", "/var/cache/monarch-kubernetes"
IMAGE = "tests.local/host:1"
BARE_PYTHON = os.path.join(sys.base_prefix, "bin", "python3")
_SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_ON_PATH = ("etcd", "containerd", "runc", "ctr", "openssl", "busybox", "ip")
_BRIDGE, _NET = "mtk0", "198.18.20"
_LOCK = "/tmp/mt-k8s.lock"  # There is one bridge, and the end of a cluster takes it away.
_CNI = "/usr/lib/cni"
_UP_SECONDS = 120.0


def pod_template(*, has_monarch: bool = True) -> dict[str, Any]:
    """Pods that run this Python, with what is installed for it and with these sources; or the bare
    Python, `BARE_PYTHON`."""
    project = Path(__file__).parents[2]
    found = {sys.base_prefix}
    if has_monarch:
        found |= {sys.prefix, str(project), *_outside(sys.path)}
    mounts = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
    mounts |= {path: path for path in sorted(found) if not path.startswith("/usr/lib")}
    names = {inside: f"v{number}" for number, inside in enumerate(mounts)}
    return {
        "spec": {
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "enableServiceLinks": False, "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "worker", "image": IMAGE, "imagePullPolicy": "Never",
                    "env": [{"name": "PYTHONPATH", "value": str(project) if has_monarch else ""}],
                    "volumeMounts": [
                        {"name": names[inside], "mountPath": inside, "readOnly": True}
                        for inside in mounts
                    ],
                }
            ],
            "volumes": [
                {"name": names[inside], "hostPath": {"path": path}}
                for inside, path in mounts.items()
            ],
        }
    }  # fmt: skip


def _outside(paths: list[str]) -> set[str]:
    """Folders of packages that lie in none of the usual places."""
    known = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]), "/usr")
    return {path for path in paths if os.path.isdir(path) and not path.startswith(known)}


class KubeCluster:
    """Skips the test where something that it takes is not there."""

    @staticmethod
    @functools.cache
    def shared() -> KubeCluster:
        """One for the whole test process, as it takes a while to come up. A process looks after it
        that is no child of ours, and ends it with us."""
        given = os.environ.get(VARIABLE) or _BUILT
        if not all(os.access(os.path.join(given, name), os.X_OK) for name in _SERVERS):
            pytest.skip(
                f"no {', '.join(_SERVERS)} in {given}: no package has them. `make kubernetes` "
                f"builds them there in some minutes, or name a folder with {VARIABLE}"
            )
        search = f"{os.environ['PATH']}:/usr/sbin"
        if missing := [name for name in _ON_PATH if shutil.which(name, path=search) is None]:
            pytest.skip(f"no {', '.join(missing)} here: `tools/system.sh` installs them")
        if os.getuid() != 0 or not os.path.isdir(_CNI):
            pytest.skip(f"Kubernetes needs root here, and plugins in {_CNI}")
        cluster = KubeCluster(Path(tempfile.mkdtemp(prefix="mt-k8s-", dir="/tmp")), given)
        keeper = [sys.executable, "-m", __name__, str(cluster.folder), given, str(os.getpid())]
        with open(cluster.folder / "keeper.log", "wb") as log:
            subprocess.run(
                ["sh", "-c", '"$@" &', "sh", *keeper], check=True, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=Path(__file__).parents[2], env={**os.environ, "PATH": search},
            )  # fmt: skip
        over = cluster.folder / "over"
        wait_for(lambda: cluster.is_up or over.exists(), 2 * _UP_SECONDS, what="Kubernetes")
        if not cluster.is_up:
            pytest.fail((cluster.folder / "keeper.log").read_text())
        return cluster

    def __init__(self, folder: Path, programs: str) -> None:
        self._bin = programs
        self.folder = folder
        self.kubeconfig = self.folder / "admin.conf"
        self.other_user = self.folder / "dev.conf"
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def is_up(self) -> bool:
        return (self.folder / "up").exists()

    def keep(self, owner: int) -> None:
        """Bring it up, and end it with the process ``owner``."""
        # Before anything else, so that no other process can have the number by then.
        owning = os.pidfd_open(owner)
        print(f"waiting for other tests of Kubernetes to end: they hold {_LOCK}", flush=True)
        lock = os.open(_LOCK, os.O_CREAT | os.O_RDWR)  # until this process ends
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            self._start_control()
            self._start_node()
            (self.folder / "up").touch()
            select.select([owning], [], [])
        finally:
            (self.folder / "over").touch()
            self.close()

    def api(self) -> Any:
        """The client library's view of it, as its administrator."""
        from kubernetes import client, config

        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)
        return client.ApiClient(settings)

    def _run(self, program: str, *arguments: str, log: str) -> None:
        with open(self.folder / f"{log}.log", "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [program, *arguments],
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _start_control(self) -> None:
        folder, port = self.folder, self._port
        tokens = {user: secrets.token_hex(16) for user in ("admin", "dev")}
        groups = {"admin": "system:masters", "dev": "devs"}
        (folder / "tokens.csv").write_text(
            "".join(f'{token},{user},{user},"{groups[user]}"\n' for user, token in tokens.items())
        )
        self._certificates()
        etcd = f"http://127.0.0.1:{free_port()}"
        self._run(
            "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
            "--unsafe-no-fsync", log="etcd",
        )  # fmt: skip
        self._run(
            f"{self._bin}/kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            f"--secure-port={port}", f"--cert-dir={folder}/certs",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-account-issuer=https://tests", f"--service-account-key-file={folder}/sa.key",
            f"--service-account-signing-key-file={folder}/sa.key",
            "--service-cluster-ip-range=198.18.12.0/24",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true",
            f"--kubelet-client-certificate={folder}/kubelet.crt",
            f"--kubelet-client-key={folder}/kubelet.key",
            "--kubelet-preferred-address-types=InternalIP", log="apiserver",
        )  # fmt: skip
        for user, token in tokens.items():
            (folder / f"{user}.conf").write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "tests",
                "clusters": [{"name": "tests", "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority": f"{folder}/certs/apiserver.crt",
                }}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "u"}}],
            }))  # fmt: skip
        wait_for(self._is_ready, _UP_SECONDS, what="the API server")
        self._run(
            f"{self._bin}/kube-controller-manager", f"--kubeconfig={self.kubeconfig}",
            "--controllers=statefulset,garbagecollector,namespace,nodelifecycle,podgc,endpoint",
            "--leader-elect=false", "--port=0", "--secure-port=0", log="controllers",
        )  # fmt: skip

    def _certificates(self) -> None:
        for command in (
            "genrsa -out sa.key 2048",
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3 -subj /CN=tests",
            "req -newkey rsa:2048 -nodes -keyout kubelet.key -out kubelet.csr "
            "-subj /O=system:masters/CN=apiserver",
            "x509 -req -in kubelet.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
            "-out kubelet.crt -days 3",
        ):
            subprocess.run(
                ["openssl", *command.split()], cwd=self.folder, check=True, capture_output=True
            )

    def _is_ready(self) -> bool:
        from kubernetes import client

        try:
            return bool(client.CoreV1Api(self.api()).list_namespace())
        except Exception:
            return False  # It is coming up.

    def _start_node(self) -> None:
        folder, node = self.folder, self.folder / "node"
        for name in ("cni", "root", "kubelet"):
            (node / name).mkdir(parents=True)
        (node / "containerd.toml").write_text(f"""version = 2
root = "{node}/root"
state = "{node}/state"
[grpc]
  address = "{node}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI}"
    conf_dir = "{node}/cni"
""")
        bridge = {
            "type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipMasq": False,
            "ipam": {
                "type": "host-local", "dataDir": f"{node}/ipam",
                "ranges": [[{"subnet": f"{_NET}.0/24"}]], "routes": [{"dst": f"{_NET}.0/24"}],
            },
        }  # fmt: skip
        (node / "cni/10-tests.conflist").write_text(
            json.dumps({
                "cniVersion": "0.4.0", "name": "tests", "plugins": [bridge, {"type": "loopback"}]
            })
        )  # fmt: skip
        # The kubelet wants the address before there is a pod.
        subprocess.run(["ip", "link", "add", _BRIDGE, "type", "bridge"], check=False)
        subprocess.run(["ip", "addr", "add", f"{_NET}.1/24", "dev", _BRIDGE], check=False)
        subprocess.run(["ip", "link", "set", _BRIDGE, "up"], check=True)
        self._run("containerd", "-c", f"{node}/containerd.toml", log="containerd")
        image = node / "image.tar"
        _write_image(image)
        socket = f"{node}/containerd.sock"
        wait_for(lambda: _is_done("ctr", "-a", socket, "version"), 30.0, what="containerd")
        subprocess.run(
            ["ctr", "-a", socket, "-n", "k8s.io", "images", "import", str(image)],
            check=True, capture_output=True,
        )  # fmt: skip
        (node / "kubelet.yaml").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": f"{_NET}.1", "port": free_port(), "readOnlyPort": 0, "healthzPort": 0,
            "cgroupDriver": "cgroupfs", "failSwapOn": False,
            "authentication": {
                "anonymous": {"enabled": False}, "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{folder}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "evictionHard": {"memory.available": "100Mi"}, "enforceNodeAllocatable": [],
            "imageGCHighThresholdPercent": 100, "syncFrequency": "1s",
            "nodeStatusUpdateFrequency": "2s", "resolvConf": "",
        }))  # fmt: skip
        self._run(
            f"{self._bin}/kubelet", f"--config={node}/kubelet.yaml",
            f"--kubeconfig={self.kubeconfig}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{socket}",
            f"--image-service-endpoint=unix://{socket}", "--hostname-override=tests",
            f"--node-ip={_NET}.1", f"--root-dir={node}/kubelet", f"--cert-dir={node}/certs",
            f"--pod-infra-container-image={IMAGE}", f"--volume-plugin-dir={node}/vol",
            log="kubelet",
        )  # fmt: skip
        self._run(
            f"{self._bin}/kube-scheduler", f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false", "--port=0", "--secure-port=0", log="scheduler",
        )  # fmt: skip
        wait_for(self._has_node, _UP_SECONDS, what="the node to be ready")

    def _has_node(self) -> bool:
        from kubernetes import client

        nodes = client.CoreV1Api(self.api()).list_node().items
        return any(
            one.type == "Ready" and one.status == "True"
            for node in nodes if not (node.spec.taints or ())
            for one in node.status.conditions or ()
        )  # fmt: skip

    def close(self) -> None:
        """End pods, daemons and network; nothing stays."""
        node = self.folder / "node"
        # The kubelet first: it would start again what ends.
        for process in reversed(self._processes):
            if "containerd" not in str(process.args):
                _end(process)
        ctr = ["ctr", "-a", f"{node}/containerd.sock", "-n", "k8s.io"]
        deadline = time.monotonic() + 30
        while (tasks := _lines(*ctr, "tasks", "ls", "-q")) and time.monotonic() < deadline:
            for task in tasks:
                subprocess.run([*ctr, "tasks", "kill", "-s", "9", task], capture_output=True)
            for task in tasks:
                subprocess.run([*ctr, "tasks", "rm", "-f", task], capture_output=True)
        for container in _lines(*ctr, "containers", "ls", "-q"):
            subprocess.run([*ctr, "containers", "rm", container], capture_output=True)
        for process in self._processes:
            _end(process)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", mount], capture_output=True)
        for name in _lines("ip", "netns", "list"):
            space = name.split()[0]
            if space.startswith("cni-") and f" {_NET}." in "".join(
                _lines("ip", "-n", space, "-4", "addr")
            ):
                subprocess.run(["ip", "netns", "del", space], capture_output=True)
        subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _is_done(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _write_image(path: Path) -> None:
    """An image with a shell that sleeps; all else is mounted into its containers."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        folders = "bin tmp proc sys dev etc usr lib lib64 root opt"
        for name in folders.split():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            files.addfile(entry)
        program = Path(shutil.which("busybox") or "").read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        files.addfile(entry, io.BytesIO(program))
        for name in ("sh", "sleep"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            files.addfile(entry)
    content = layer.getvalue()
    config = {
        "architecture": "amd64", "os": "linux",
        "config": {
            "Entrypoint": ["/bin/sleep"], "Cmd": ["2147483647"], "Env": ["PATH=/bin:/usr/bin"]
        },
        "rootfs": {
            "type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]
        },
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        for name, data in (
            ("layer.tar", content), ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    KubeCluster(Path(sys.argv[1]), sys.argv[2]).keep(int(sys.argv[3]))
