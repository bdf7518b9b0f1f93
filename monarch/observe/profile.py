"""`JobTrait.profile`: traces all ranks during a block of a program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from monarch.observe.trace import MeshTrace
from monarch.observe.visit import MeshVisit


class MeshProfile:
    """A ``with`` block that records what all processes do within. It can be used once.

    ``on_trace_ready`` is called with this object once the block has ended without an error.
    ``path`` is the file that was written last.
    """

    def __init__(
        self,
        visit: Callable[[], MeshVisit],
        on_trace_ready: Callable[[MeshProfile], object] | None = None,
    ) -> None:
        self._visit = visit
        self._on_trace_ready = on_trace_ready
        self._began_ns: int | None = None
        self._trace: MeshTrace | None = None
        self.path: Path | None = None

    def __enter__(self) -> MeshProfile:
        if self._began_ns is not None:
            raise RuntimeError("a profile serves once: make another")
        self._began_ns = time.time_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        assert self._began_ns is not None
        ended_ns = time.time_ns()
        self._trace = MeshTrace(self._visit().drain().packed, (self._began_ns, ended_ns))
        if kind is None and self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def export_perfetto_trace(self, output: str | os.PathLike[str] | None = None) -> Path:
        """Write the trace, for ui.perfetto.dev, to ``output`` [default: ``trace.json.gz``]; return
        the path.

        Raises ``RuntimeError`` before the block has ended, and ``OSError`` if the file cannot be
        written.
        """
        if self._trace is None:
            raise RuntimeError("the block of this profile has not ended yet")
        self.path = Path(output if output is not None else "trace.json.gz")
        self._trace.write(self.path)
        return self.path
