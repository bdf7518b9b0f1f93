"""The HTML with which a notebook shows a mesh: a square for each member, by host."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from monarch.mesh import html
from monarch.runtime import process
from monarch.wire.address import ProcAddress


def html_of(title: str, members: Sequence[ProcAddress]) -> str:
    """Return HTML that shows ``members``, which are procs or hosts. It asks no process: a member is
    shown as lost if this process knows that.
    """
    node = process.current().node
    rows: dict[tuple[str, bool], dict[int, str]] = {}
    for rank, member in enumerate(members):
        urls = member.host_urls or member.urls
        failure = node.failure_of(member.uid)
        host = urls[0].rpartition("/")[2] if urls else member.host_uid
        is_here = urls[0].startswith(("ipc:", "inproc:")) if urls else not host
        rows.setdefault((host, is_here), {})[rank] = "" if failure is None else failure.reason
    here = [host for host, is_here in rows if is_here]
    machine = socket.gethostname()
    # Hosts of one machine are told apart by the names of their sockets; alone, one needs none.
    names = {
        (host, is_here): host if not is_here else machine if len(here) == 1 else f"{machine} {host}"
        for host, is_here in rows
    }
    return html.grid(title, {names[key]: ranks for key, ranks in rows.items()})
