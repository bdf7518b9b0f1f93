"""Examines one host: a script that imports nothing of ours, for any Python from 3.7 on.

It reads orders as lines of JSON, and writes answers as lines of JSON; each answer begins with the
mark that is the first argument. It leaves no process behind, and changes nothing.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

_COMMAND_SECONDS = 10.0
_KNOCK_SECONDS = 3.0


def main(mark: str) -> None:
    """Answer orders from standard input until it ends.

    Each answer is a line that begins with ``mark``.
    """
    listeners: list[socket.socket] = []
    while True:
        line = sys.stdin.readline()
        if not line:
            return
        order = json.loads(line)
        try:
            if order["do"] == "look":
                answer = look(order.get("port", 0))
            elif order["do"] == "listen":
                answer = _listen(listeners)
            else:
                answer = {"reached": _knock(order["at"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(mark + json.dumps(answer) + "\n")
        sys.stdout.flush()


def look(port: int) -> dict[str, Any]:
    """Return the facts of this host, as JSON data."""
    return {
        "time": time.time(),
        "host": socket.gethostname(),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "machine": platform.machine(),
        "cpus": _cpus(),
        "memory": _memory(),
        "load": os.getloadavg()[0],
        "folders": _folders(),
        "shm": _free("/dev/shm"),
        "gpus": _gpus(),
        "packages": _packages(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "addresses": _addresses(),
        "port": _port_state(port) if port else "",
        "infiniband": [os.path.basename(path) for path in glob.glob("/sys/class/infiniband/*")],
    }


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 0


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _free(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def _folders() -> dict[str, Any]:
    """Return the free bytes and inodes of home and of the temporary folder, or why they cannot be
    written."""
    folders = {}
    for name, folder in (("home", os.path.expanduser("~")), ("tmp", tempfile.gettempdir())):
        problem, inodes = "", -1
        try:
            status = os.statvfs(folder)
            inodes = status.f_favail if status.f_files else -1
            if status.f_flag & os.ST_RDONLY:
                problem = "it is read-only"
            elif not os.access(folder, os.W_OK | os.X_OK):
                problem = "permission denied"
        except OSError as error:
            problem = error.strerror or str(error)
        folders[name] = {
            "path": folder,
            "free": _free(folder),
            "problem": problem,
            "inodes": inodes,
        }
    return folders


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Return the output and the error of a command; both are "" if it does not exist."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except OSError:
        return "", ""
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} does not end"
    if result.returncode:
        error = (result.stderr or result.stdout).strip()
        return "", error or f"{command[0]} ends with {result.returncode}"
    return result.stdout, ""


def _gpus() -> dict[str, Any]:
    fields = "name,driver_version,memory.total,memory.used,compute_mode"
    out, problem = _run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"])
    gpus = []
    for line in out.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5:
            name, driver, memory, used, _ = parts
            gpus.append({"name": name, "driver": driver, "memory": memory, "used": used})
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    return {"found": gpus, "problem": problem, "devices": devices}


def _packages() -> dict[str, str]:
    """Return the versions of monarch, torch and NCCL, from their metadata, without importing
    them."""
    versions: dict[str, str] = {}
    try:
        from importlib.metadata import PackageNotFoundError, version
    except ImportError:
        return versions
    for name in ("monarch-loop", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            pass
        except Exception:
            versions[name] = "?"
    return versions


def _addresses() -> list[list[str]]:
    """Return pairs (interface, IPv4 address), without loopback."""
    out, _ = _run(["ip", "-o", "-4", "addr", "show", "up"])
    addresses = []
    for line in out.splitlines():
        parts = line.split()
        if len(parts) > 3 and parts[2] == "inet":
            address = parts[3].split("/")[0]
            if not address.startswith("127."):
                addresses.append([parts[1], address])
    if not addresses:
        try:
            address = socket.gethostbyname(socket.gethostname())
            if not address.startswith("127."):
                addresses.append(["?", address])
        except OSError:
            pass
    return addresses


def _port_state(port: int) -> str:
    """Return why the port cannot be listened at; "" if it can."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("0.0.0.0", port))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        listener.close()
    return ""


def _listen(listeners: list[socket.socket]) -> dict[str, Any]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("0.0.0.0", 0))
    listener.listen(64)
    listeners.append(listener)
    return {"port": listener.getsockname()[1]}


def _knock(addresses: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Connect to these ports; return, for each, the seconds it took, or why it failed."""
    results: dict[str, Any] = {}

    def knock(address: str, port: int) -> None:
        began = time.time()
        try:
            socket.create_connection((address, port), _KNOCK_SECONDS).close()
            results[f"{address}:{port}"] = time.time() - began
        except OSError as error:
            results[f"{address}:{port}"] = str(error.strerror or error)

    threads = [threading.Thread(target=knock, args=pair, daemon=True) for pair in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_KNOCK_SECONDS + 1.0)
    return results


if __name__ == "__main__":
    main(sys.argv[1])
