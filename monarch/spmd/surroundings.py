"""Which machines a mesh is on, and the network between them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from monarch.actor import HostMesh, ProcMesh
from monarch.tools.network import LOOPBACK, interface_towards

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def hosts_beyond(mesh: ProcMesh | HostMesh) -> tuple[str, ...]:
    """The names that the hosts of a mesh are known by; none where one machine has all of them."""
    urls = set(_urls(mesh))
    if len(urls) < 2:
        return ()
    names = {urlsplit(url).hostname or "" for url in urls if url.startswith("tcp://")}
    return tuple(sorted(names - {"", LOOPBACK, "localhost"}))


def shares_files(mesh: ProcMesh | HostMesh) -> bool:
    """Whether all procs of a mesh see the same files, as the same user: one host has all of them,
    or all hosts are reached through Unix sockets."""
    urls = set(_urls(mesh))
    return len(urls) == 1 or not any(url.startswith("tcp://") for url in urls)


def _urls(mesh: ProcMesh | HostMesh) -> Iterable[str]:
    """One for each host; of a host in the client's own program, which may have none, its uid."""
    if isinstance(mesh, HostMesh):
        hosts = [(host.address.urls, host.address.uid) for host in mesh._hosts]
    else:
        hosts = [(proc.host_urls, proc.host_uid) for proc in mesh._procs]
    return [urls[0] if urls else uid for urls, uid in hosts]


def use_interface(address: str) -> None:
    """Have gloo and NCCL of this process listen where that address is reached, and only there.

    On loopback they are reached from this machine alone. By themselves gloo takes what the host's
    name stands for, NCCL the first that it finds. Variables that the user has set stay.
    """
    name = interface_towards(address)
    if name is not None:
        for variable in _INTERFACE_VARIABLES:
            os.environ.setdefault(variable, f"={name}" if variable.startswith("NCCL") else name)
