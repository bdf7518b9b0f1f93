"""Which RDMA device of a machine is used, which of its addresses, and how it reaches GPU memory."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.config import upstream_value
from monarch.rdma.memory.gpu import gpu
from monarch.rdma.ways.verbs.library import MemoryKeys, VerbsDevice, VerbsFailed

_log = logging.getLogger("monarch.rdma")
_SYS = Path("/sys/class/infiniband")
_DMA_BUF_FD = 1
_PEER_MEMORY = "/sys/module/nvidia_peermem"


def usable(names: Sequence[str], sys: Path = _SYS) -> list[str]:
    """Return the devices that have reliable connections: Amazon's EFA has a protocol of its own.

    ``sys`` is the folder in which the kernel describes them.
    """
    reliable = [name for name in names if _driver(name, sys) != "efa"]
    if len(reliable) < len(names):
        _log.info("EFA devices are not supported: memory is read over TCP there")
    return reliable


def _driver(name: str, sys: Path) -> str:
    try:
        return os.path.basename(os.readlink(sys / name / "device" / "driver"))
    except OSError:
        return ""


def choose(names: Sequence[str], near: str = "") -> str:
    """Return the device for memory near ``near``: the PCIe path of a GPU, or "" for host memory.

    ``rdma_ibverbs_target`` may name one, as "nic:mlx5_0".
    """
    target: str = upstream_value("rdma_ibverbs_target")
    kind, _, name = target.partition(":")
    if kind == "nic" and name in names:
        return name
    paths = {device: os.path.realpath(_SYS / device / "device") for device in names}
    nodes = {device: _numa_node(path) for device, path in paths.items()}
    return nearest(paths, nodes, near, own_numa_node())


def nearest(paths: Mapping[str, str], nodes: Mapping[str, int], near: str, own_node: int) -> str:
    """Return the device with the most PCIe bridges in common with ``near``.

    Of several such devices, a device of our NUMA node is preferred, and then the first by name.
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
    """Return the NUMA node of the CPUs that this process may use; -1 if they are of several."""
    cpus = os.sched_getaffinity(0)
    nodes = [
        int(folder.name.removeprefix("node"))
        for folder in Path("/sys/devices/system/node").glob("node[0-9]*")
        if any((folder / f"cpu{cpu}").exists() for cpu in cpus)
    ]
    return nodes[0] if len(nodes) == 1 else -1


def gids_of(device: str, port: int = 1) -> list[tuple[int, bytes, str]]:
    """Return the addresses of a port from the kernel: index, 16 bytes, and type of each."""
    folder = _SYS / device / "ports" / str(port)
    addresses = []
    for path in sorted((folder / "gids").glob("*"), key=lambda path: int(path.name)):
        try:
            kind = (folder / "gid_attrs" / "types" / path.name).read_text().strip()
            gid = bytes.fromhex(path.read_text().strip().replace(":", ""))
        except (OSError, ValueError):
            continue  # A hole of the table.
        addresses.append((int(path.name), gid, kind))
    return addresses


def best_gid(gids: Sequence[tuple[int, bytes, str]]) -> tuple[int, bytes]:
    """Return the index and bytes of a routed address (RoCE v2), preferably IPv4; for InfiniBand the
    first."""

    def key(address: tuple[int, bytes, str]) -> tuple[bool, bool, bool, int]:
        index, gid, kind = address
        is_ipv4 = gid[:12] == bytes(10) + b"\xff\xff"
        is_local = gid[:2] == b"\xfe\x80" or not any(gid)
        return kind != "RoCE v2", is_local, not is_ipv4, index

    index, gid, _ = min(gids, key=key, default=(0, bytes(16), ""))
    return index, gid


def register_gpu(device: VerbsDevice, address: int, length: int, driver: Any = None) -> MemoryKeys:
    """Register GPU memory: by the kernel's peer memory if that is loaded, else by exporting it.

    Torch's memory can be exported if ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` is set
    before CUDA is used.
    """
    if driver is None and os.path.exists(_PEER_MEMORY):
        return device.register(address, length)
    fd, base = export(address, driver or _driver_of_gpu())
    try:
        return device.register_dma_buf(fd, address - base, address, length)
    finally:
        os.close(fd)  # The registration has its own.


def export(address: int, driver: Any) -> tuple[int, int]:
    """Return a descriptor of the whole allocation at ``address``, and the address where it
    begins."""
    base, size, fd = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int(-1)
    _check(driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), _at(address)))
    page = os.sysconf("SC_PAGE_SIZE")
    length = -(-size.value // page) * page
    get_handle, flags = driver.cuMemGetHandleForAddressRange, ctypes.c_ulonglong(0)
    whole = _at(base.value), ctypes.c_size_t(length)
    _check(get_handle(ctypes.byref(fd), *whole, _DMA_BUF_FD, flags))
    return fd.value, base.value


def _at(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def _driver_of_gpu() -> Any:
    try:
        return gpu().driver()
    except OSError as error:
        raise VerbsFailed(str(error)) from None


def _check(status: int) -> None:
    if status:
        raise VerbsFailed(f"CUDA's driver cannot export the memory (error {status})")
