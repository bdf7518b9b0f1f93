"""Which device of a machine is taken, and which of its addresses."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch.config import upstream_value
from monarch.rdma.verbs.library import VerbsLibrary

_log = logging.getLogger("monarch.rdma")
_SYS = Path("/sys/class/infiniband")
_LIBRARIES = ("pyverbs_library", "ibverbs_library")


@functools.cache
def find_library() -> VerbsLibrary | None:
    """The first binding that is installed and sees a device."""
    for module in _LIBRARIES:
        try:
            library: VerbsLibrary = importlib.import_module(f"monarch.rdma.verbs.{module}").LIBRARY
        except ImportError:
            # Of pyverbs, also one that is built for another libibverbs.
            continue
        if usable(library.list_devices()):
            return library
    return None


def usable(names: Sequence[str]) -> list[str]:
    """Without those that have no reliable connections: Amazon's EFA has a protocol of its own."""
    found = [name for name in names if _driver(name) != "efa"]
    if len(found) < len(names):
        _log.info("EFA devices are not supported: memory is read over TCP there")
    return found


def _driver(name: str) -> str:
    try:
        return os.path.basename(os.readlink(_SYS / name / "device" / "driver"))
    except OSError:
        return ""


def choose(names: Sequence[str], near: str = "") -> str:
    """The device for memory at ``near``: the PCIe path of a GPU, or "" for memory of this host.

    ``rdma_ibverbs_target`` may name one, as "nic:mlx5_0".
    """
    target: str = upstream_value("rdma_ibverbs_target")
    kind, _, name = target.partition(":")
    if kind == "nic" and name in names:
        return name
    paths = {one: os.path.realpath(_SYS / one / "device") for one in names}
    nodes = {one: _numa_node(paths[one]) for one in names}
    return nearest(paths, nodes, near, own_numa_node())


def nearest(paths: Mapping[str, str], nodes: Mapping[str, int], near: str, own_node: int) -> str:
    """The one with the most PCIe bridges in common with ``near``; then of our NUMA node; then the
    first by name.
    """

    def key(name: str) -> tuple[int, bool, str]:
        common = os.path.commonpath([paths[name], near]).count("/") if near else 0
        return -common, nodes[name] not in (own_node, -1), name

    return min(paths, key=key)


def _numa_node(path: str) -> int:
    try:
        return int(Path(path, "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def own_numa_node() -> int:
    """The node of the CPUs that this process may use, if they are of one; else -1."""
    cpus = os.sched_getaffinity(0)
    found = set()
    for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
        if any((node / f"cpu{cpu}").exists() for cpu in cpus):
            found.add(int(node.name.removeprefix("node")))
    return found.pop() if len(found) == 1 else -1


def gids_of(device: str, port: int = 1) -> list[tuple[int, bytes, str]]:
    """The addresses of a port: index, 16 bytes, and type, as the kernel shows them."""
    folder = _SYS / device / "ports" / str(port)
    found = []
    for path in sorted((folder / "gids").glob("*"), key=lambda path: int(path.name)):
        try:
            kind = (folder / "gid_attrs" / "types" / path.name).read_text().strip()
            gid = bytes.fromhex(path.read_text().strip().replace(":", ""))
        except (OSError, ValueError):
            continue  # A hole of the table.
        found.append((int(path.name), gid, kind))
    return found


def best_gid(gids: Sequence[tuple[int, bytes, str]]) -> tuple[int, bytes]:
    """One that is routed (RoCE v2), of IPv4 if there is such; the first for InfiniBand."""

    def key(one: tuple[int, bytes, str]) -> tuple[bool, bool, bool, int]:
        index, gid, kind = one
        is_ipv4 = gid[:12] == bytes(10) + b"\xff\xff"
        is_local = gid[:2] == b"\xfe\x80" or not any(gid)
        return kind != "RoCE v2", is_local, not is_ipv4, index

    index, gid, _ = min(gids, key=key, default=(0, bytes(16), ""))
    return index, gid
