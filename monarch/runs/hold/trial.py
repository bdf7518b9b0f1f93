"""Trials of new code in each process: copies the state before a call, and can restore it.

A ``Trial`` is an actor beside another one in its process. Before an endpoint of that actor is
called the first time on code that is newer than that with which it last succeeded, the actor's
state is copied. The copy is dropped when the next endpoint is called, as the run calls none before
the last has succeeded on all ranks; until then it can be restored. Later calls of code that is
newer than the run's first can be undone, too, if nothing large has changed by then; so can the very
first call of an endpoint, if a person may fix it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from monarch.actor import Actor, context, endpoint
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch.runs.hold.copy_beside import CopyBeside, NoRoom, begin_copy, why_no_room
from monarch.runs.hold.packed_state import UnpackableState
from monarch.runs.hold.state_copies import PutBack, held_by_optimizers, keep, watch
from monarch.runs.hold.state_memory import StateMemory
from monarch.runs.hold.tensor_copies import ValueSamples
from monarch.runs.hold.unaveraged import guard_optimizers, has_averaged
from monarch.runs.record.error_text import in_words
from monarch.runs.record.places import in_short, users_place
from monarch.runs.recover.witness import waits_for_others
from monarch.runtime import process
from monarch.runtime.observe.process_groups import Connection, abort_groups, rank_connections
from monarch.version import OUR_FOLDER

_INTERRUPT_AGAIN_SECONDS = 0.2
_MAX_FRAMES = 30
_LAST_SECONDS = 0.9
_INSTEAD = "new processes would go on from the last checkpoint"


class _Interrupt(BaseException):
    """Raised in a thread that must return from its call."""


class Interrupted(RuntimeError):
    """An endpoint was interrupted, because it took too long or another rank had failed."""


@dataclass(frozen=True)
class TrialReport:
    """One rank's report on its last endpoint.

    ``good`` is the generation with which that endpoint last went well; ``None`` if it never did.
    ``error`` and ``traceback`` are empty if nothing was raised; ``file`` and ``line`` say where it
    was raised, or where the rank is. ``is_waiting``: it is in a collective. ``life`` changes with
    each new process.
    """

    rank: int
    method: str = ""
    generation: int = 0
    good: int | None = None
    is_running: bool = False
    is_waiting: bool = False
    error: str = ""
    traceback: str = ""
    file: str = ""
    line: int = 0
    life: str = ""

    @property
    def is_new(self) -> bool:
        """Whether the rank's code is newer than the code with which the endpoint last succeeded."""
        return self.good is not None and self.generation > self.good


@dataclass
class _Call:
    """A call of an endpoint in progress, with what its report needs."""

    #: The report on the call, without what is known only at a look at it.
    report: TrialReport
    #: The id of the thread that runs the call.
    thread: int
    started: float = field(default_factory=time.monotonic)
    is_running: bool = True
    is_interrupted: bool = False
    has_failed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Trial(Actor):
    """The trials of the actor with this uid, in this process.

    ``good`` has the generation with which each endpoint succeeded in earlier processes, and under
    the key "" the run's first generation. Without ``keeps`` the state cannot be restored in this
    process; copies are still made in the host's memory, from which a new process can continue. With
    ``watches_first`` the state can also be restored after the first call of an endpoint, on code
    that was never edited. ``memory`` is the owner of the copies in the host's memory
    (``RunMemory.owner``). ``num_ranks_here`` processes of this host make such copies. With
    ``is_told_of_room`` it is not reported again that there is no room for them.

    It is a sync actor with a thread of its own, so it answers while the actor on trial is stuck.
    """

    def __init__(
        self,
        uid: str,
        good: Mapping[str, int],
        *,
        keeps: bool = True,
        watches_first: bool = False,
        memory: str = "",
        num_ranks_here: int | None = None,
        is_told_of_room: bool = False,
    ) -> None:
        self.rank = context().actor_instance.rank.rank
        self._good = dict(good)
        self._keeps = keeps
        self._watches_first = watches_first
        #: Restores the state from before the last call; ``None`` if there is no copy.
        self._put_back: PutBack | None = None
        #: Whether the copy is whole, so that any change can be undone.
        self._is_whole = False
        #: Why there is no copy.
        self._why_not_kept = ""
        self._has_owner = bool(memory)
        self._memory = StateMemory(memory, str(self.rank))
        ranks_here = os.environ.get("LOCAL_WORLD_SIZE", "1")
        self._num_ranks_here = int(ranks_here) if num_ranks_here is None else num_ranks_here
        #: The last copy in the host's memory.
        self._copy: CopyBeside | None = None
        #: Whether that is a copy of the state of code that has succeeded.
        self._is_shadow = False
        #: Whether a new copy must not overwrite an older one: there were shadows.
        self._keeps_older = False
        #: Messages about copies, for a person, and those about room for them.
        self._news: list[str] = []
        self._room_news: list[str] = []
        self._reported: set[str] = set()
        self._is_told_of_room = is_told_of_room
        self._samples = ValueSamples()
        #: How long the last call took.
        self._call_seconds = 0.0
        #: Whether the state was restored since the last call.
        self._is_restored = False
        #: The endpoint that failed before the state was restored, and will be called again; "" if
        #: the run does not wait for that.
        self._repeated = ""
        self._last_call: _Call | None = None
        #: The id of this process in reports.
        self._life = os.urandom(8).hex()
        #: Guards interruptions: a call must not end meanwhile.
        self._lock = threading.Lock()
        self._cell = next(cell for cell in process.current().cells if cell.record.uid == uid)
        self._cell.surround(self._surround)

    # Called in the actor's thread

    def _surround(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def tried(instance: object, *args: Any, **kwargs: Any) -> Any:
            call = self._begin(name, instance)
            try:
                with self._watched(call):
                    result = method(instance, *args, **kwargs)
            except _Interrupt:
                self._end(call)
                raise Interrupted(f"{name} was interrupted") from None
            except Exception:
                raise
            except BaseException as error:
                raise _fixable(error) from error
            if inspect.iscoroutine(result):
                return self._awaited(call, result)
            # If groups have discarded the step, its code has not succeeded.
            call.has_failed = getattr(result, "committed", True) is False
            return result

        return functools.wraps(method)(tried)

    async def _awaited(self, call: _Call, result: Any) -> Any:
        call.is_running, call.has_failed = True, False
        call.done.clear()
        try:
            with self._watched(call):
                return await result
        except (Exception, asyncio.CancelledError, GeneratorExit):
            raise  # The latter two mean that the call was given up.
        except BaseException as error:
            raise _fixable(error) from error

    def _begin(self, name: str, instance: object) -> _Call:
        last, generation = self._last_call, process.current().generation
        if last is not None and not last.has_failed:
            self._note_good(last)
            self._put_back = None
            if self._copy is not None and not (self._is_shadow or self._repeated):
                self._copy.close()
                self._copy = None
        elif self._is_restored:
            # The copy refers to wrappers of groups that are gone, whose hooks would still run.
            self._put_back = None
            gc.collect()
        self._is_restored = False
        # Calls before the failed one is repeated only prepare it, and change no weights.
        prepares = bool(self._repeated) and name != self._repeated
        if not prepares:
            self._repeated = ""
        start, good = self._good_for(name)
        # Some actors work on another thread than this one.
        thread = getattr(instance, "__thread__", threading.get_ident)()
        report = TrialReport(self.rank, name, generation, good, life=self._life)
        call = _Call(report, thread)
        # Only code that was loaded since then may leave weights half changed: a push of a log or a
        # data file costs no copy.
        is_whole = process.current().gate.code_generation > good and not prepares
        is_first = self._watches_first and name not in self._good
        is_kept = self._keeps and (generation > start or is_first)
        begin = functools.partial(self._begin_copy, instance, generation)
        if is_kept and (self._put_back is None or is_whole > self._is_whole):
            try:
                if is_whole:
                    self._put_back = keep(instance, begin)
                else:
                    self._put_back = watch(instance, self._samples, self._call_seconds)
                self._is_whole, self._why_not_kept = is_whole, ""
            except Exception as error:  # for example, there is no room
                self._why_not_kept = f"{type(error).__name__}: {error}"
        elif not self._keeps and is_whole and self._can_outlive(instance):
            with contextlib.suppress(Exception):  # for example, there is no model yet
                begin(held_by_optimizers(instance))
        if is_kept and is_whole:
            guard_optimizers()
        self._last_call = call
        return call

    def _note_good(self, call: _Call) -> None:
        self._good.setdefault("", call.report.generation)
        self._good[call.report.method] = call.report.generation

    def _good_for(self, name: str) -> tuple[int, int]:
        """Return (the run's first generation, the generation with which the endpoint ``name`` last
        succeeded).
        """
        start = self._good.get("", process.current().generation)
        return start, self._good.get(name, start)

    def _can_outlive(self, instance: object) -> bool:
        """Whether another process can use a copy of this actor: it has a ``__state__``."""
        return self._has_owner and hasattr(instance, "__state__")

    def _begin_copy(self, instance: Any, generation: int, held: list[Any]) -> CopyBeside | None:
        """Begin a copy of the state in the host's memory, in place of the last copy.

        Returns ``None`` if that is impossible, for example if there is no room.
        """
        if self._copy is not None:
            if self._copy.renew(held):
                return self._copy
            self._copy.close()
            self._copy = None
        self._is_shadow = False
        if "torch" not in sys.modules:
            return None  # The memory is written as tensors.
        state = instance.__state__() if hasattr(instance, "__state__") else None
        begin = functools.partial(
            begin_copy,
            self._memory,
            held=held,
            generation=generation,
            num_ranks=self._num_ranks_here,
            keeps_older=self._keeps_older,
            call_seconds=self._call_seconds,
        )
        try:
            try:
                self._copy = begin(state=state)
            except UnpackableState as error:
                self._tell(f"{error}, which cannot be given to a new process: {_INSTEAD}")
                self._copy = begin(state=None) if held and self._keeps else None
        except (NoRoom, OSError) as error:
            if not self._is_told_of_room:
                self._is_told_of_room = True
                in_process = "the copy is made before the step, and " if self._keeps else ""
                self._room_news = [f"{error}: {in_process}{_INSTEAD}"]
        return self._copy

    def _tell(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._news.append(text)

    @contextlib.contextmanager
    def _watched(self, call: _Call) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            call.has_failed = True
            if not isinstance(error, _Interrupt):
                _note(call, error)
            raise
        finally:
            self._end(call)

    def _end(self, call: _Call) -> None:
        """End a call, after which it is not interrupted any more. Runs in the call's thread."""
        self._call_seconds = time.monotonic() - call.started
        with self._lock:
            call.is_running = False
            if call.is_interrupted:
                if call.thread == threading.get_ident():
                    _clear_interrupt()
                else:
                    _raise_in(call.thread, None)
        call.done.set()

    # Called by the client

    @endpoint
    def shadow(self) -> None:
        """Copy the current state, during the next call, so that new processes can continue from it.

        Call it while the actor is idle.
        """
        instance = self._cell.instance
        if hasattr(instance, "__state__"):
            self._keeps_older = True
            self._begin_copy(instance, process.current().generation, held_by_optimizers(instance))
            self._is_shadow = True

    @endpoint
    def why_no_copy(self, name: str) -> str:
        """Return why the host has no room for a copy, so that a checkpoint must be saved before the
        endpoint ``name`` runs new code; "" if it has room.

        Call it while the actor is idle, and after its last endpoint has succeeded on all ranks.
        """
        if self._last_call is not None and not self._last_call.has_failed:
            self._note_good(self._last_call)
        instance, (_, good) = self._cell.instance, self._good_for(name)
        is_new = process.current().gate.code_generation > good
        if not (is_new and self._can_outlive(instance)):
            return ""
        try:
            reason = why_no_room(
                self._memory,
                instance.__state__(),
                held_by_optimizers(instance),
                num_ranks=self._num_ranks_here,
                keeps_older=self._keeps_older,
            )
        except Exception:  # for example, no checkpoint could hold that state either
            return ""
        if not reason:
            return ""
        self._is_told_of_room, self._room_news = True, []
        return f"{reason}: a checkpoint is written before the step, for new processes to go on from"

    @endpoint
    def news(self) -> list[str]:
        """Return new messages about copies; each is returned once."""
        if reason := self._memory.why_unpinned:
            self._tell(f"copies into the host's memory are slow, as it is not pinned: {reason}")
        news, self._news, self._room_news = [*self._news, *self._room_news], [], []
        return news

    def __cleanup__(self, error: Exception | None) -> None:
        if self._copy is not None:
            # Other ranks may be gone, and all must continue from here.
            self._copy.wait(_LAST_SECONDS)

    @endpoint
    def report(self) -> TrialReport:
        """Return the report on the last call."""
        call = self._last_call
        if call is None:
            return TrialReport(self.rank, life=self._life)
        report = replace(call.report, is_running=call.is_running)
        is_inside = report.is_running and not report.error
        frame = sys._current_frames().get(call.thread) if is_inside else None
        if frame is None:
            return report
        frames = traceback.extract_stack(frame)
        file, line = users_place(frames)
        return replace(report, file=file, line=line, is_waiting=waits_for_others(frames))

    @endpoint
    def connections(self) -> list[Connection]:
        """Return the TCP connections of this process, without those of the runtime and the
        rendezvous.
        """
        return rank_connections(process.current().node.address.urls)

    @endpoint
    def cut(self, connections: Collection[Connection]) -> None:
        """Close these connections as if the other side had gone, and abort the process groups, as
        NCCL does.

        A rank that waits for this rank in a collective gets an error at once. With gloo that needs
        the closed connections, because gloo watches nothing else.
        """
        abort_groups(connections)

    @endpoint
    def come_back(self, seconds: float, patience_seconds: float) -> bool:
        """Wait until the current call has ended; after ``patience_seconds`` it is interrupted.

        Returns whether it has ended within ``seconds``.
        """
        call = self._last_call
        if call is None:
            return True
        deadline = time.monotonic() + seconds
        if call.done.wait(min(seconds, patience_seconds)):
            return True
        while (remaining := deadline - time.monotonic()) > 0:
            with self._lock:
                if call.is_running:
                    call.is_interrupted = True
                    _raise_in(call.thread, _Interrupt)
            if call.done.wait(min(remaining, _INTERRUPT_AGAIN_SECONDS)):
                return True
        return False

    @endpoint
    def go_on(self) -> None:
        """Cancel an interruption that has not taken effect."""
        call = self._last_call
        with self._lock:
            if call is not None and call.is_running and call.is_interrupted:
                call.is_interrupted = False
                _raise_in(call.thread, None)

    @endpoint
    def restore(self, repeated: str = "") -> tuple[str, list[str]]:
        """Restore the state from before the last call.

        Return why that failed, or "", and descriptions of objects that were neither restored nor
        compared. ``repeated`` is the endpoint that the run will call again when there is newer
        code. Calls of other endpoints before that call change no weights, so the copy of the state
        is kept during them.
        """
        call = self._last_call
        if call is None:
            return "", []
        call.has_failed = True  # so that the next call does not count it as a success
        if self._put_back is None:
            return self._why_not_kept or "no copy of the state was made", []
        gc.collect()  # Graphs with hooks that the failed call left behind must go first.
        try:
            is_same_code = process.current().generation == call.report.generation
            unkept = self._put_back(is_same_code=is_same_code)
        except Exception as error:
            return f"{type(error).__name__}: {error}", []
        self._is_restored = True
        if self._is_whole and self._copy is not None and not self._is_shadow:
            self._copy.equals_state()
        if repeated == call.report.method:
            self._repeated = repeated
        return "", unkept

    @endpoint
    def has_averaged(self) -> bool:
        """Whether DDP has finished all averages of gradients that it has begun in this process."""
        return has_averaged()


def _fixable(error: BaseException) -> BaseException:
    """Return the error to raise in place of ``error``, which is not an `Exception`.

    An error such as `SystemExit` would end the actor, but the user can fix its cause like any
    other. Our own kinds are returned as they are, because callers catch them.
    """
    is_ours = type(error).__module__.startswith("monarch.")
    return error if is_ours else RuntimeError(in_words(error))


def _note(call: _Call, error: BaseException) -> None:
    """Record the text of an error, not the error itself: its frames keep tensors and graphs with
    hooks."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OUR_FOLDER):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames, limit=-_MAX_FRAMES)
    text = "".join(lines).rstrip()
    file, line = place_of(error)
    call.report = replace(call.report, error=in_words(error), traceback=text, file=file, line=line)


class PlacedError(MonarchError):
    """The text of an error of the user's code, which may have been raised in another process.

    ``place`` is the file and the line in that process.
    """

    def __init__(self, reason: str, place: tuple[str, int] = ("", 0)) -> None:
        super().__init__(reason, place)
        self.reason = reason
        self.place = place

    def __str__(self) -> str:
        return self.reason


def is_of_code(error: BaseException) -> bool:
    """Whether a fix of the user's code may help: not for errors of a config, a checkpoint or a
    host."""
    return isinstance(error, PlacedError) or not isinstance(error, ConfigError | MonarchError)


def place_of(error: BaseException) -> tuple[str, int]:
    """Return the file and line of the user's code that raised; ("", 0) if they are not known."""
    while error.__cause__ is not None:
        error = error.__cause__  # The outer error only words it for a reader.
    if isinstance(error, PlacedError) and error.place[0]:
        return error.place
    if isinstance(error, SyntaxError) and error.filename:
        return in_short(error.filename), error.lineno or 0
    return users_place(traceback.extract_tb(error.__traceback__))


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in the thread ``thread`` at its next step. With ``None``, an error that was
    not raised yet is cancelled.
    """
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _clear_interrupt() -> None:
    """Raise and catch here the interruption of this thread, if it is still to come.

    Cancelling it instead would leave a flag in Python that something must be raised; with that
    flag, a thread that a debugger traces never gets beyond the beginning of a function (3.11).
    """
    try:
        _raise_in(threading.get_ident(), _Interrupt)
        for _ in range(1000):
            pass
    except _Interrupt:
        pass
