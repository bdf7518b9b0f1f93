"""Stands in for a Kubernetes API server, its controllers and a kubelet: pods are processes of this
machine, each with a loopback address of its own.

It knows what `monarch.job.kinds.kube_api` asks for. A pod whose image is ``missing`` cannot be
pulled; a namespace ``forbidden`` refuses everything; one called ``full`` has no quota left.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

_TICK_SECONDS = 0.02
_KINDS = ("secrets", "services", "statefulsets", "monarchmeshes", "pods", "events")
_PATH = re.compile(r"/(?:api/v1|apis/([^/]+)/[^/]+)/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(/log)?")


def _claimed_network() -> tuple[str, socket.socket]:
    """The first three numbers of loopback addresses that no other server of this machine gives to
    its pods, which all listen at one port; they are ours until the socket is closed."""
    while True:
        network = f"127.{random.randint(64, 254)}.{random.randint(0, 255)}"
        claim = socket.socket()
        try:
            claim.bind((f"{network}.1", 26599))
            claim.listen(1)  # Where two have bound the same, one may listen.
            return network, claim
        except OSError:
            claim.close()


class _Pod:
    """A container, started again whenever it ends."""

    def __init__(self, manifest: dict[str, Any], folder: str) -> None:
        self.manifest = manifest
        self.process: subprocess.Popen[bytes] | None = None
        self.num_restarts = 0
        self.log = os.path.join(folder, manifest["metadata"]["name"] + ".log")
        self.kill_at: float | None = None
        self.retry_at = 0.0


class KubeServer:
    """``has_operator``: the cluster knows MonarchMesh, and pods are made for those."""

    def __init__(self, *, has_operator: bool = False) -> None:
        self.has_operator = has_operator
        self.stored: dict[str, dict[tuple[str, str], dict[str, Any]]] = {k: {} for k in _KINDS}
        self.pods: dict[tuple[str, str], _Pod] = {}
        self.lock = threading.RLock()
        self._folder = tempfile.TemporaryDirectory(prefix="mt-kube-")
        self._network, self._claim = _claimed_network()
        self._num_addresses = 1
        self._over = threading.Event()
        server = self

        class Requests(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                status, answer = server.answer(self.command, self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _serve

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._threads = [
            threading.Thread(target=run, daemon=True)
            for run in (lambda: self._http.serve_forever(0.05), self._control)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        }  # fmt: skip

    def close(self) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join(10)
        for pod in self.pods.values():
            if pod.process is not None:
                self._signal(pod, signal.SIGKILL)
                pod.process.wait()
        self._claim.close()
        self._folder.cleanup()

    def delete_pod(self, name: str, grace_seconds: float | None = None) -> None:
        """As kubectl does."""
        with self.lock:
            key = next(key for key in self.pods if key[1] == name)
            self._delete_pod(key, grace_seconds)

    def answer(self, verb: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        where, _, query = path.partition("?")
        if where == "/version/":
            return 200, {"gitVersion": "v1.31.0"}
        if where.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            is_allowed = asked["namespace"] != "forbidden" or asked["verb"] == "list"
            return 201, {"status": {"allowed": is_allowed}}
        if where == "/api/v1/nodes":
            return 200, {"items": [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}]}
        match = _PATH.fullmatch(where)
        options = dict(urllib.parse.parse_qsl(query))
        if match is None:
            return _error(404, "the server could not find the requested resource")
        group, namespace, kind, name, is_log = match.groups()
        if namespace == "forbidden":
            verbs = {"GET": "list", "POST": "create", "DELETE": "delete"}
            return _error(
                403,
                f'{kind} is forbidden: User "dev" cannot {verbs[verb]} resource "{kind}" in API '
                f'group "{group or ""}" in the namespace "forbidden"',
            )
        if kind == "monarchmeshes" and not self.has_operator:
            return _error(404, "the server could not find the requested resource")
        with self.lock:
            stored = self.stored[kind]
            if is_log:
                return 200, Path(self.pods[namespace, name].log).read_bytes()
            if verb == "POST":
                key = namespace, body["metadata"]["name"]
                if key in stored:
                    return _error(409, f'{kind} "{key[1]}" already exists')
                if options.get("dryRun") == "All":
                    if kind == "pods" and namespace == "full":
                        return _error(403, f'pods "{key[1]}" is forbidden: exceeded quota: small')
                    return 201, body
                stored[key] = body
                return 201, body
            if name is None:
                found = [one for key, one in stored.items() if key[0] == namespace]
                return 200, {"items": [one for one in found if _is_meant(one, options)]}
            if (namespace, name) not in stored:
                return _error(404, f'{kind} "{name}" not found')
            if verb == "GET":
                found_one = stored[namespace, name]
                if kind == "secrets":
                    return 200, {**found_one, "data": _encoded(found_one)}
                return 200, found_one
            if kind == "pods":
                seconds = options.get("gracePeriodSeconds")
                seconds = body.get("gracePeriodSeconds", seconds)
                self._delete_pod((namespace, name), None if seconds is None else float(seconds))
            else:
                del stored[namespace, name]
            return 200, {"status": "Success"}

    def _delete_pod(self, key: tuple[str, str], grace_seconds: float | None) -> None:
        pod = self.pods[key]
        spec = pod.manifest["spec"]
        grace = spec.get("terminationGracePeriodSeconds", 30) if grace_seconds is None else (
            grace_seconds
        )  # fmt: skip
        deadline = time.monotonic() + grace
        if pod.kill_at is None:
            pod.manifest["metadata"]["deletionTimestamp"] = "now"
            self._signal(pod, signal.SIGTERM)
        pod.kill_at = min(deadline, pod.kill_at or deadline)

    def _signal(self, pod: _Pod, number: int) -> None:
        if pod.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pod.process.pid, number)

    def _control(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            with self.lock:
                owners = {**self.stored["statefulsets"], **self.stored["monarchmeshes"]}
                for (namespace, name), owner in owners.items():
                    self._make_pods(namespace, name, owner["spec"])
                for key in list(self.pods):
                    is_owned = key[1].rpartition("-")[0] in {name for _, name in owners}
                    if not is_owned and self.pods[key].kill_at is None:
                        self._delete_pod(key, None)
                    self._look_after(key)

    def _make_pods(self, namespace: str, owner: str, spec: dict[str, Any]) -> None:
        template = spec.get("template") or spec["podTemplate"]
        for rank in range(spec["replicas"]):
            key = namespace, f"{owner}-{rank}"
            if key in self.pods:
                continue
            if namespace == "full":
                self.stored["events"][namespace, owner] = {
                    "metadata": {"name": owner}, "reason": "FailedCreate",
                    "involvedObject": {"name": owner},
                    "message": f'pods "{owner}-{rank}" is forbidden: exceeded quota: small',
                }  # fmt: skip
                continue
            self._num_addresses += 1
            manifest = json.loads(json.dumps(template))
            manifest["metadata"] = {**manifest.get("metadata", {}), "name": key[1]}
            address = f"{self._network}.{self._num_addresses}"
            manifest["status"] = {"phase": "Pending", "podIP": address}
            self.pods[key] = _Pod(manifest, self._folder.name)
            self.stored["pods"][key] = manifest

    def _look_after(self, key: tuple[str, str]) -> None:
        pod, status = self.pods[key], self.pods[key].manifest["status"]
        worker = pod.manifest["spec"]["containers"][0]
        is_alive = pod.process is not None and pod.process.poll() is None
        if pod.kill_at is not None:
            if is_alive and time.monotonic() > pod.kill_at:
                self._signal(pod, signal.SIGKILL)
            if not is_alive:
                del self.pods[key], self.stored["pods"][key]
            return
        state: dict[str, Any] = {"running": {}}
        last: dict[str, Any] = {}
        if worker["image"] == "missing":
            message = 'Back-off pulling image "missing"'
            state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        elif not is_alive:
            if pod.process is not None:
                code = pod.process.returncode
                last = {"terminated": {"exitCode": code, "reason": "Error"}}
                pod.num_restarts += 1
                pod.process = None
                # At once for the first time, then later and later.
                pod.retry_at = time.monotonic() + (10.0 if pod.num_restarts > 1 else 0.0)
            if time.monotonic() < pod.retry_at:
                state = {"waiting": {"reason": "CrashLoopBackOff"}}
                last = last or status["containerStatuses"][0]["lastState"]
            else:
                self._start(key[0], pod, worker)
        status["phase"] = "Running"
        status["containerStatuses"] = [
            {
                "name": worker["name"], "state": state, "lastState": last,
                "restartCount": pod.num_restarts,
            }
        ]  # fmt: skip

    def _start(self, namespace: str, pod: _Pod, worker: dict[str, Any]) -> None:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        kept = ("MONARCH_RUNTIME_DIR", "PYTHONDONTWRITEBYTECODE", "HOME")
        env |= {name: os.environ[name] for name in kept if name in os.environ}
        for variable in worker.get("env", ()):
            env[variable["name"]] = self._value(namespace, pod, variable)
        with open(pod.log, "ab") as log:
            pod.process = subprocess.Popen(
                worker["command"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._folder.name,
            )  # fmt: skip

    def _value(self, namespace: str, pod: _Pod, variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable["value"])
        if "secretKeyRef" in source:
            named = source["secretKeyRef"]
            return str(self.stored["secrets"][namespace, named["name"]]["stringData"][named["key"]])
        fields = {
            "status.podIP": pod.manifest["status"]["podIP"],
            "metadata.name": pod.manifest["metadata"]["name"],
        }
        return str(fields[source["fieldRef"]["fieldPath"]])


def _encoded(secret: dict[str, Any]) -> dict[str, str]:
    import base64

    return {
        key: base64.b64encode(value.encode()).decode()
        for key, value in secret["stringData"].items()
    }


def _is_meant(one: dict[str, Any], options: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels", {})
    for pair in filter(None, options.get("labelSelector", "").split(",")):
        name, _, value = pair.partition("=")
        if labels.get(name) != value:
            return False
    for pair in filter(None, options.get("fieldSelector", "").split(",")):
        name, _, value = pair.partition("=")
        if (one["reason"] if name == "reason" else one["involvedObject"]["name"]) != value:
            return False
    return True


def _error(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"kind": "Status", "message": message, "code": status}


if __name__ == "__main__":
    # For examples: prints the kubeconfig, and serves until its input ends.
    server = KubeServer()
    print(json.dumps(server.kubeconfig), flush=True)
    sys.stdin.read()
    server.close()
