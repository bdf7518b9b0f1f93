"""The HTML by which a notebook shows a mesh: a square for each member, by host."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.mesh import html
from monarch.runtime import process
from monarch.wire.address import ProcAddress


def html_of(title: str, members: Sequence[ProcAddress]) -> str:
    """``members`` are procs, or hosts. No process is asked: a member is shown as lost if that is
    known here."""
    node = process.current().node
    rows: dict[str, dict[int, str]] = {}
    for rank, member in enumerate(members):
        urls = member.host_urls or member.urls
        failure = node.failure_of(member.uid)
        place = urls[0].rpartition("/")[2] if urls else member.host_uid or "this program"
        rows.setdefault(place, {})[rank] = "" if failure is None else failure.reason
    return html.grid(title, rows)
