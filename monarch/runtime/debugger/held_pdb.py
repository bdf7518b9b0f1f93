"""Python's debugger on the thread of a held call.

It steps through the user's code alone: our own frames below an endpoint, and asyncio's, are left
out. Commands that would take over the process's terminal, or restart the process, are refused.
"""

from __future__ import annotations

import bdb
import builtins
import ctypes
import inspect
import pdb
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, cast

from monarch.runtime.cells.call_watch import RunAgain
from monarch.runtime.debugger.held_text import HeldText

_OURS = ["monarch.*", "asyncio.*", "contextlib", "contextvars", "threading"]


class HeldPdb(pdb.Pdb):
    """Python's debugger for a held call. Before it reads a command, it calls ``stops`` with the
    frame at which it stops. ``learn`` loads the lines of a file that this host lacks into
    ``linecache`` and returns whether it could."""

    def __init__(
        self,
        text: HeldText,
        stops: Callable[[FrameType | None], None],
        learn: Callable[[str], bool],
    ) -> None:
        # Typeshed knows the streams as files.
        super().__init__(
            stdin=cast(Any, text),
            stdout=cast(Any, text),
            skip=_OURS,
            nosigint=True,
            readrc=False,
        )
        self.runs_again = False
        self.is_hasty = False
        self._enters = False
        self.refuses_redo = ""
        self._stops = stops
        self._learn = learn

    def reset(self) -> None:
        """Stop at the next line that runs, and end the tracing of this thread.

        If tracing stayed on, the debugger would stop in its own code when a breakpoint is set.
        """
        sys.settrace(None)
        super().reset()

    def set_stepinstr(self) -> None:
        """Stop at the line after ``breakpoint()``, on each version of Python.

        Without this, Python 3.13 and later would stop at the line of ``breakpoint()`` itself.
        """
        self.set_step()

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        self._enters = False
        tb = traceback.__traceback__ if isinstance(traceback, BaseException) else traceback
        stopped = _last(tb) if frame is None else frame
        self._stops(stopped)
        while stopped is not None and not _is_ours(stopped):
            self._learn(stopped.f_code.co_filename)
            stopped = stopped.f_back
        super().interaction(frame, traceback)

    def get_stack(self, f: Any, t: Any) -> Any:
        """Return the stack without our own frames above the user's."""
        stack, index = super().get_stack(f, t)
        ours = [i for i, (frame, _) in enumerate(stack[:index]) if _is_ours(frame)]
        begin = ours[-1] + 1 if ours else 0
        return stack[begin:], index - begin

    def lookupmodule(self, filename: str) -> str | None:
        """Return the path of a breakpoint's file, also if only the client has it; else None."""
        path = super().lookupmodule(filename)
        if path is not None:
            return path
        whole = filename if filename.endswith(".py") else f"{filename}.py"
        return next((name for name in (filename, whole) if self._learn(name)), None)

    def stand_here(self, frame: FrameType) -> None:
        """Read commands at the line where ``frame`` is, on its thread, which must not be traced."""
        self.reset()
        caller: FrameType | None = frame
        while caller is not None:
            caller.f_trace = self.trace_dispatch
            self.botframe = caller
            caller = caller.f_back
        self.interaction(frame, None)
        if self.quitting:
            self._leave()
        if self.stoplineno != -1 or self.breaks:
            sys.settrace(self.trace_dispatch)

    def stand_next(self) -> None:
        """Read commands when the user's code is entered next on this thread."""
        self.reset()
        self.set_step()
        self._enters = True
        sys.settrace(self.trace_dispatch)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Handle the entry of a function.

        If the debugger waits for a function of the user to be entered, it stops at the first line
        of this one.
        """
        if not self._enters:
            super().user_call(frame, argument_list)

    def stand_at_error(self, error: BaseException) -> bool:
        """Read commands at the place where ``error`` was raised. Returns whether the call must be
        run again.
        """
        self.reset()
        if sys.version_info >= (3, 13):
            self.interaction(None, error)
        else:
            self.interaction(None, error.__traceback__)
        return self.runs_again

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            self._leave()

    def _leave(self) -> None:
        if self.runs_again:
            raise RunAgain from None
        raise bdb.BdbQuit("the call was ended in the debugger") from None

    def end(self, frame: FrameType | None) -> None:
        """End all tracing on this thread, because the held call is over."""
        sys.settrace(None)
        for file, lines in [(file, list(lines)) for file, lines in self.breaks.items()]:
            for line in lines:
                self.clear_break(file, line)  # They are the process's, not this debugger's.
        while frame is not None:
            if frame.f_trace is not None:
                frame.f_trace = None
            frame = frame.f_back

    @property
    def goes_on(self) -> bool:
        """Whether the last command was ``continue`` and this debugger has no breakpoints."""
        return self.stoplineno == -1 and not self.breaks

    def onecmd(self, line: str) -> bool:
        """Run a command, and write the variables that it has set to the frame.

        They are written at once, because later reads of the frame's variables would undo them.
        """
        frame = self.curframe
        ends = bool(super().onecmd(line))
        if frame is not None:
            _keep_locals(frame)
        return ends

    def do_redo(self, arg: str) -> bool | None:
        """redo [now]
        End the call here, take the code that was saved, and run the same call again, as if it
        had just come: what it did to `self` so far stays. It waits 5 s for new code; `redo now`
        does not.
        """
        if arg.strip() not in ("", "now"):
            self.error("redo, or redo now")
            return None
        if self.refuses_redo:
            self.message(self.refuses_redo)
            return None
        self.runs_again, self.is_hasty = True, arg.strip() == "now"
        self._user_requested_quit = True
        self.set_quit()
        return True

    def do_continue(self, arg: str) -> bool | None:
        self.set_continue()
        return True

    do_c = do_cont = do_continue

    def do_clear(self, arg: str) -> None:
        """cl(ear) [filename:lineno | bpnumber ...]
        Without argument, clear all breaks, without asking.
        """
        if arg:
            super().do_clear(arg)
            return
        for breakpoint in filter(None, bdb.Breakpoint.bpbynumber):
            self.message(f"Deleted {breakpoint}")
        self.clear_all_breaks()

    do_cl = do_clear

    def do_run(self, arg: str) -> None:
        """run
        Not here: `redo` runs the held call again.
        """
        self.error("not here: `redo` runs the held call again")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact
        Not here: there is no terminal.
        """
        self.error("not here: there is no terminal. `!statement` runs a statement")

    def names(self, text: str) -> list[str]:
        """Return completions of the last word of ``text``, in the selected frame."""
        word = _last_word(text)
        names: list[str] = []
        if text.strip() == word:
            names += [name[3:] for name in self.get_names() if name.startswith(f"do_{word}")]
        frame = self.curframe
        if frame is not None:
            *path, last = word.split(".")
            variables = {**frame.f_globals, **self.curframe_locals}
            names += [".".join([*path, name]) for name in _attributes(variables, path, last)]
        return sorted(set(names))


def _attributes(variables: dict[str, Any], path: list[str], begin: str) -> list[str]:
    if not path:
        return [name for name in [*variables, *dir(builtins)] if begin and name.startswith(begin)]
    try:
        value = variables[path[0]]
        for name in path[1:]:
            value = getattr(value, name)
        names = dir(value)
    except Exception:
        return []  # It is the user's code that is asked, and there is nothing to complete.
    wants_private = begin.startswith("_")
    return [n for n in names if n.startswith(begin) and n.startswith("_") == wants_private]


def _last_word(line: str) -> str:
    start = len(line)
    while start and (line[start - 1].isalnum() or line[start - 1] in "_."):
        start -= 1
    return line[start:]


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(("monarch.runtime.", "monarch.runs."))


def _keep_locals(frame: FrameType) -> None:
    """Write the variables that a person has set or deleted in ``f_locals`` back to the frame.

    Before Python 3.13 ``f_locals`` is a copy that is filled from the frame at each access, so
    values set in it would be lost. On Python 3.12 a deleted variable keeps its value: unbinding it
    there would bind it to None, with a warning.
    """
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        unbinds = ctypes.c_int(sys.version_info < (3, 12))
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), unbinds)
        _ = frame.f_locals


def _last(traceback: TracebackType | None) -> FrameType | None:
    frame = None
    while traceback is not None:
        frame = traceback.tb_frame
        traceback = traceback.tb_next
    return frame
