"""Runs a plain script on a mesh: one copy in each proc, in the environment of ``torchrun``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import types
from collections import deque
from typing import Any, NamedTuple

from monarch.actor import context, endpoint
from monarch.runs.record.error_lines import ErrorLines, error_in
from monarch.runtime.ends.process_group import end_child
from monarch.spmd import SPMDActor
from monarch.spmd.steps import ScriptThread

_CHUNK = 65536
_KEPT_BYTES = 200_000
_END_SECONDS = 10.0


class ScriptEnd(NamedTuple):
    """How the script of a rank has ended; ``error`` is ``None`` if it succeeded."""

    rank: int
    status: int
    error: ErrorLines | None = None


class StepsMade(NamedTuple):
    """The progress of a rank's script: whether it is at a step, and how many it has made.

    ``figures`` are the numbers that the script gave to ``monarch.step``, or that its step returned.
    """

    rank: int
    is_at_step: bool
    num_steps: int
    figures: dict[str, float]


def ended_words(status: int) -> str:
    """Return a description of how a process ended that printed no error."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
        return f"was ended by signal {-status}"
    return f"exited with status {status}"


class ScriptProcess(SPMDActor):
    """Runs a script unchanged in a separate Python; its output is this process's."""

    @endpoint
    def start(self, run_id: str, there: str, argv: list[str], num_here: int) -> None:
        """Start the script, after ``setup_env``.

        ``there`` is the script's path in a copy of the workspace, "" if it is not in it; ``argv``
        begins with its path on the client. ``num_here`` ranks are on this machine, as far as the
        client knows.
        """
        self.rank = context().actor_instance.rank.rank
        environment = os.environ | _torchrun_variables(run_id, num_here)
        script = script_here(there, argv[0])
        self._printed = _Printed()
        self._child = subprocess.Popen(
            [sys.executable, "-u", script, *argv[1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._child.stderr is not None
        self._reader = threading.Thread(
            target=self._printed.follow, args=(self._child.stderr.fileno(),), daemon=True
        )
        self._reader.start()

    @endpoint
    def ended(self) -> ScriptEnd | None:
        """Return how the process ended; ``None`` while it runs."""
        status = self._child.poll()
        if status is None:
            return None
        self._reader.join(_END_SECONDS)
        error = None
        if status:
            error = error_in(self._printed.text()) or ErrorLines(ended_words(status))
        return ScriptEnd(self.rank, status, error)

    def __cleanup__(self, error: Exception | None) -> None:
        child = getattr(self, "_child", None)
        if child is not None:
            end_child(child, 1.0)
            self._reader.join(1.0)
            child.stderr.close()


class _Printed:
    """Passes everything that a process prints on standard error on to the standard error of this
    process, and keeps the last lines.
    """

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._size = 0

    def follow(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(fd, _CHUNK):
                self._kept.append(data)
                self._size += len(data)
                while self._size - len(self._kept[0]) > _KEPT_BYTES:
                    self._size -= len(self._kept.popleft())
                written = 0
                while written < len(data):
                    written += os.write(2, data[written:])

    def text(self) -> str:
        return b"".join(self._kept).decode(errors="replace")


class ScriptSteps(SPMDActor):
    """Runs a script that calls ``monarch.step``, on a thread of this process.

    Pushed code is loaded while the script is at a step.
    """

    def __init__(self) -> None:
        self.rank = context().actor_instance.rank.rank
        self._script: ScriptThread | None = None

    def __thread__(self) -> int:
        """Return the id of the thread that does the work of this actor's endpoints."""
        return threading.get_ident() if self._script is None else self._script.ident

    def __roots__(self) -> dict[str, Any]:
        """Return the part of the run's state that is not in modules: the objects with which the
        script's step is called.
        """
        work = None if self._script is None else self._script.work
        return {} if work is None else {"step": work.__dict__}

    @endpoint
    def start(self, run_id: str, there: str, argv: list[str], num_here: int) -> None:
        """Prepare the script as ``ScriptProcess.start`` does; none of it has run on return."""
        os.environ.update(_torchrun_variables(run_id, num_here))
        # If torch was imported before, OpenMP has read its variable already.
        torch: Any = sys.modules.get("torch")
        num_threads = os.environ.get("OMP_NUM_THREADS", "")
        if torch is not None and num_threads.isdecimal() and int(num_threads):
            torch.set_num_threads(int(num_threads))
        script = script_here(there, argv[0])
        sys.argv = [script, *argv[1:]]
        folder = os.path.dirname(os.path.abspath(script))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self._script = ScriptThread(lambda: _run_as_main(script))

    @endpoint
    def go_on(self) -> StepsMade:
        """Run the script until its next step, or its end."""
        assert self._script is not None
        try:
            is_at_step = self._script.go_on()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{sys.argv[0]} exited with {end.code}") from None
            is_at_step = False
        return StepsMade(self.rank, is_at_step, self._script.num_steps, self._script.figures)

    @endpoint
    def step(self) -> StepsMade:
        """Run the step that the script is at."""
        assert self._script is not None
        figures = self._script.make_step()
        return StepsMade(self.rank, True, self._script.num_steps, figures)


def _torchrun_variables(run_id: str, num_here: int) -> dict[str, str]:
    """Return the variables that ``torchrun`` sets beside ranks and addresses.

    As with torchrun, each of several ranks on one machine gets one thread of OpenMP, unless the
    user has set the number. Several hosts may share the machine.
    """
    variables = {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    num_here = max(num_here, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if num_here > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def script_here(there: str, path: str) -> str:
    """Return the script's path in this host's copy of the workspace; without it, ``path``."""
    workspace = os.environ.get("WORKSPACE_DIR", "")
    copy = os.path.join(workspace, there) if workspace and there else ""
    return copy if copy and os.path.exists(copy) else path


def _run_as_main(script: str) -> None:
    """Run a file as ``__main__``, under that name in ``sys.modules``, as Python itself does."""
    with open(script, "rb") as file:
        # Without this file's imports from `__future__`, which would turn annotations into strings.
        code = compile(file.read(), script, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
