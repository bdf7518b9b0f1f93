"""`procs.view()`: shows in a notebook what these procs do, updated once a second.

With anywidget the kernel's own connection updates the cell, which also works if the browser cannot
reach the kernel's machine. Without it the cell shows one moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from monarch.mesh import html
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.view.live_view import COLUMNS, LiveView, cells_of
from monarch.wire.address import ProcAddress

_EVERY_SECONDS = 1.0
# The text is HTML of ours, in which all that comes from ranks is escaped.
_PAGE = """
export default { render({ model, el }) {
  const draw = () => { el.innerHTML = model.get("html"); };
  model.on("change:html", draw);
  draw();
} };
"""


class MeshView:
    """A view of ``procs``, as a cell's value, which is updated until ``close``, or until they
    end."""

    def __init__(self, procs: Sequence[ProcAddress], title: str) -> None:
        self._uids = frozenset(proc.uid for proc in procs)
        self._title = title
        self._view = LiveView()
        self._visit = MeshVisit(client().node, hosts_of(client()))
        self._closed = threading.Event()
        self._widget: Any = None

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        try:
            from anywidget import AnyWidget  # Where a notebook's extra is installed.
            from traitlets import Unicode
        except ImportError:
            return {"text/html": self.look(), "text/plain": self._title}
        if self._widget is None:
            kind = type(
                "MeshWidget", (AnyWidget,), {"_esm": _PAGE, "html": Unicode().tag(sync=True)}
            )
            self._widget = kind(html=self.look())
            threading.Thread(target=self._follow, name="monarch-view", daemon=True).start()
        return self._widget._repr_mimebundle_(**kwargs)

    def close(self) -> None:
        """Stop updating the view."""
        self._closed.set()

    def look(self) -> str:
        """Return the current state, as HTML."""
        return table_of(self._title, self._snapshot())

    def _snapshot(self) -> dict[str, Any]:
        return self._view.update(_only(self._visit.look(), self._uids), time.time())

    def _follow(self) -> None:
        while not self._closed.wait(_EVERY_SECONDS):
            try:
                snapshot = self._snapshot()
                self._widget.html = table_of(self._title, snapshot)
            except Exception:  # The client has left, or the kernel ends.
                return
            if not snapshot["num_ranks"]:
                return


def _only(looks: Sequence[Mapping[str, Any]], uids: Collection[str]) -> list[dict[str, Any]]:
    """Return the looks of hosts that have some of these procs, without other procs."""
    kept_looks = []
    for look in looks:
        procs = [proc for proc in look.get("procs", ()) if proc["uid"] in uids]
        if procs:
            kept_looks.append({**look, "procs": procs})
    return kept_looks


def table_of(title: str, snapshot: Mapping[str, Any]) -> str:
    """Return a snapshot of `LiveView` as a table for a cell.

    Ranks that do the same are one row; odd ones come first.
    """
    rows = [cells_of(group) for group in snapshot["groups"]]
    heading = f"{title}: {snapshot['counters']['rate']:.0f} calls/s"
    waits = [line for line in snapshot["waits"] if line != "nobody waits for anybody"]
    under = html.table("", (), [(line,) for line in waits[:6]]) if waits else ""
    return html.table(heading if rows else f"{title}: has ended", COLUMNS, rows) + under
