"""Breakpoints by file and line, set in a running process, and kept when its code is reloaded.

From Python 3.12 on they use ``sys.monitoring``: lines without a breakpoint cost nothing, and a
running loop stops at its next turn. Before, later calls are traced in files that have breakpoints.
"""

from __future__ import annotations

import difflib
import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from monarch.wire.message import BreakPlace

_TOOL = 4  # one that no known tool takes

Stand = Callable[[FrameType, str], bool]


@dataclass
class _Place:
    number: int
    file: str
    line: int
    condition: str
    text: str = ""
    texts: dict[str, list[str]] = field(default_factory=dict)
    lines: dict[tuple[str, int], int | None] = field(default_factory=dict)

    def is_in(self, file: str) -> bool:
        return file == self.file or file.endswith("/" + self.file.lstrip("/"))

    def line_in(self, file: str, generation: int) -> int | None:
        """Return the line in ``file`` where the breakpoint is now; None if the line was deleted.

        The breakpoint was set in the text of ``file`` that this process saw first; later changes
        move it.
        """
        key = file, generation
        if key not in self.lines:
            linecache.checkcache(file)
            lines_now = linecache.getlines(file)
            lines_before = self.texts.setdefault(file, lines_now)
            # A process that began with newer code knows the line by its text alone.
            line = line_with(self.text, lines_before, self.line)
            self.lines[key] = moved_line(lines_before, lines_now, line)
        return self.lines[key]


class BreakPlaces:
    """The lines to stop at. ``stand`` holds the call at a frame and returns whether to keep
    tracing. ``generation`` counts the changes of code in this process."""

    def __init__(self, stand: Stand, generation: Callable[[], int]) -> None:
        self._stand = stand
        self._generation = generation
        self._places: dict[int, _Place] = {}
        self._found: dict[tuple[CodeType, int], dict[int, _Place]] = {}
        self._lock = threading.Lock()
        self._is_monitoring = False

    @property
    def has_any(self) -> bool:
        return bool(self._places)

    def change(self, order: BreakPlace) -> str:
        """Set or remove a breakpoint.

        Returns the text of its line; "" if it was removed, or if the file is not known here.
        """
        text = ""
        with self._lock:
            self._found.clear()
            if order.is_gone:
                self._places.pop(order.number, None)
            else:
                place = _Place(order.number, order.file, order.line, order.condition, order.text)
                self._places[order.number] = place
                text = self._meet(place)
        if sys.version_info >= (3, 12):
            self._monitor()
        return text

    def _meet(self, place: _Place) -> str:
        text = ""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None) or ""
            if place.is_in(file):
                line = place.line_in(file, self._generation())
                text = linecache.getline(file, line or 0).strip()
        return text

    def _in(self, code: CodeType) -> dict[int, _Place]:
        """Return the breakpoints in a function, by line."""
        generation = self._generation()
        key = code, generation
        by_line = self._found.get(key)
        if by_line is None:
            by_line = {}
            lines = None
            for place in self._places.values():
                if not place.is_in(code.co_filename):
                    continue
                lines = lines or {line for _, _, line in code.co_lines() if line}
                line = place.line_in(code.co_filename, generation)
                if line in lines and line is not None and line != code.co_firstlineno:
                    by_line[line] = place
            self._found[key] = by_line
        return by_line

    def _hit(self, place: _Place, frame: FrameType) -> bool:
        if not place.condition:
            return True
        try:
            return bool(eval(place.condition, frame.f_globals, frame.f_locals))
        except Exception as error:
            sys.stderr.write(f"break {place.number}: {place.condition!r} raised {error!r}\n")
            return False

    # Before Python 3.12.

    def trace_call(self) -> None:
        """Begin tracing a call that begins on this thread."""
        if sys.version_info < (3, 12) and self._places:
            sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._trace_lines if self._in(frame.f_code) else None

    def _trace_lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = self._in(frame.f_code).get(frame.f_lineno) if event == "line" else None
        if place is None or not self._hit(place, frame):
            return self._trace_lines
        if self._stand(frame, f"{place.file.rpartition('/')[2]}:{frame.f_lineno}"):
            return frame.f_trace
        sys.settrace(self._trace)
        return self._trace_lines

    # From Python 3.12 on.

    if sys.version_info >= (3, 12):

        def _monitor(self) -> None:
            monitoring = sys.monitoring
            events = monitoring.events
            if self._places and not self._is_monitoring:
                monitoring.use_tool_id(_TOOL, "monarch debug")
                monitoring.register_callback(_TOOL, events.PY_START, self._on_start)
                monitoring.register_callback(_TOOL, events.PY_RESUME, self._on_start)
                monitoring.register_callback(_TOOL, events.LINE, self._on_line)
                self._is_monitoring = True
            elif not self._places and self._is_monitoring:
                monitoring.set_events(_TOOL, 0)
                monitoring.free_tool_id(_TOOL)
                self._is_monitoring = False
                return
            if self._is_monitoring:
                monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME)
                monitoring.restart_events()
                for frame in sys._current_frames().values():
                    caller: FrameType | None = frame
                    while caller is not None:
                        self._on_start(caller.f_code, 0)
                        caller = caller.f_back

        def _on_start(self, code: CodeType, offset: int) -> Any:
            if self._in(code):
                sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
            return sys.monitoring.DISABLE

        def _on_line(self, code: CodeType, line: int) -> Any:
            place = self._in(code).get(line)
            if place is None:
                return sys.monitoring.DISABLE
            frame = sys._getframe(1)
            if self._hit(place, frame):
                self._stand(frame, f"{place.file.rpartition('/')[2]}:{line}")
            return None


def moved_line(before: Sequence[str], after: Sequence[str], line: int) -> int | None:
    """Return the new number of ``line``, both counted from 1; ``None`` if the line was deleted.

    An edited line is found by its position between unchanged neighbours.
    """
    index = line - 1
    if not 0 <= index < len(before):
        return line if line <= len(after) else None
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if not first <= index < last:
            continue
        moved = new_first + index - first
        if kind == "equal" or (kind == "replace" and moved < new_last):
            return moved + 1
        return None
    return None


def line_with(text: str, lines: Sequence[str], line: int) -> int:
    """Return the number, from 1, of the line nearest to ``line`` whose text without indentation is
    ``text``. Returns ``line`` if no line matches or ``text`` is empty.
    """
    numbers = [n for n, other in enumerate(lines, 1) if text and other.strip() == text]
    return min(numbers, key=lambda number: abs(number - line), default=line)
