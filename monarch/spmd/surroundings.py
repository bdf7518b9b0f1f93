"""Which machines a mesh is on, and the network between them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from monarch.actor import HostMesh, ProcMesh
from monarch.tools.network import LOOPBACK, interface_towards

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def hosts_beyond(mesh: ProcMesh | HostMesh) -> tuple[str, ...]:
    """Return the names at which the hosts of a mesh are reached; empty if all are one machine."""
    urls = set(_urls(mesh))
    if len(urls) < 2:
        return ()
    names = {urlsplit(url).hostname or "" for url in urls if url.startswith("tcp://")}
    return tuple(sorted(names - {"", LOOPBACK, "localhost"}))


def shares_files(mesh: ProcMesh | HostMesh) -> bool:
    """Whether all procs of a mesh see the same files, as the same user.

    They do if they are on one host, or all hosts are reached through Unix sockets.
    """
    urls = set(_urls(mesh))
    return len(urls) == 1 or not any(url.startswith("tcp://") for url in urls)


def _urls(mesh: ProcMesh | HostMesh) -> Iterable[str]:
    """Return a URL of each host; its uid if it has none, as a host in the client's own program."""
    if isinstance(mesh, HostMesh):
        hosts = [(host.address.urls, host.address.uid) for host in mesh._hosts]
    else:
        hosts = [(proc.host_urls, proc.host_uid) for proc in mesh._procs]
    return [urls[0] if urls else uid for urls, uid in hosts]


def use_interface(address: str) -> None:
    """Make gloo and NCCL of this process listen only at the network interface towards an address.

    With a loopback address they are reached from this machine alone. By default gloo uses the
    address of the host's name, and NCCL the first interface that it finds. Variables that the user
    has set stay.
    """
    name = interface_towards(address)
    if name is not None:
        for variable in _INTERFACE_VARIABLES:
            os.environ.setdefault(variable, f"={name}" if variable.startswith("NCCL") else name)
