"""Witnesses: get the Python stacks of a mesh whose actors do not answer.

Spawn a ``Witness`` beside the actors that must be watched. It is async, and so lives on its
proc's main thread, where it can answer while a sync actor is stuck on a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from monarch.actor import Actor, context, endpoint
from monarch.runs.record.places import in_short, users_frame
from monarch.runs.record.slowness import RankLook
from monarch.runs.recover.modules_run import (
    NOTHING_RUN,
    ModulesRun,
    modules_run_here,
    who_left_out_what,
)
from monarch.version import OUR_FOLDER

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"  # within the library, where there is no venv
_SHOWN_FRAMES = 12
_IDLE = "it does nothing"
# Files in which torch waits for other ranks: collectives, and the backward pass with DDP's;
# and those of TorchFT, and of libraries on top of it.
_WAITS = (
    "torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py",
    "torch/futures/", "torchtitan/distributed/", "/torchft",
)  # fmt: skip
# Files in which it only waits. The others compute as well: operators of distributed tensors, hooks
# of FSDP, stages of a pipeline, a backward pass.
_COLLECTIVES = (
    "torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py",
    "torch/distributed/_functional_collectives.py", "torch/futures/", "/torchft",
)  # fmt: skip
_OPERATOR = "/torch/_ops.py"  # Its caller shows what the thread does.
# Frames that exist only while something is compiled. Other frames of these packages exist also
# while compiled code runs.
_COMPILES = (
    "/torch/_dynamo/convert_frame.py", "/torch/_dynamo/symbolic_convert.py",
    "/torch/_dynamo/output_graph.py", "/torch/_inductor/graph.py", "/torch/_inductor/scheduler.py",
    "/torch/_inductor/async_compile.py", "/torch/_inductor/cpp_builder.py",
    "/torch/_inductor/fx_passes/", "/torch/_inductor/codegen/", "/torch/utils/cpp_extension.py",
    "/triton/compiler/", "/triton/backends/", "/triton/runtime/build.py",
)  # fmt: skip
_COMPILING_FUNCTIONS = {
    "/torch/_inductor/compile_fx.py": ("compile_fx", "compile_fx_inner", "_compile_fx_inner"),
    "/torch/_inductor/runtime/triton_heuristics.py": ("precompile", "benchmark_all_configs"),
    "/torch/_inductor/cudagraph_trees.py": ("record_function", "_record"),
    "/torch/cuda/graphs.py": ("capture_begin", "capture_end", "make_graphed_callables"),
    "/torch/_dynamo/compiled_autograd.py": ("begin_capture", "end_capture"),
    "/triton/runtime/autotuner.py": ("benchmark", "_bench"),
}
_IMPORTS = "<frozen importlib._bootstrap>"
# Programs that torch's compiler, Triton and extensions run. The system keeps 15 letters of a name.
_COMPILERS = frozenset({
    "cc1", "cc1plus", "g++", "c++", "gcc", "cc", "clang", "clang++", "as", "ld", "ld.lld",
    "collect2", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "hipcc", "ninja",
})  # fmt: skip
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RankStack:
    """The stacks of one rank's threads that run user code.

    ``text`` is "" if the rank did not answer.
    """

    rank: int
    text: str
    is_waiting: bool
    modules: ModulesRun = NOTHING_RUN

    @property
    def hangs(self) -> bool:
        """Whether the other ranks wait for this rank: it does not wait itself, and it has not
        answered.
        """
        return not self.is_waiting and self.text != _IDLE


class Witness(Actor):
    """An actor that reports what its process is doing."""

    @endpoint
    async def stack(self) -> tuple[str, bool, tuple[Any, ...]]:
        """Return (the stacks, whether the process waits for other ranks, the parts of a sharded
        model that it has run).

        In each stack, the innermost frame is last.
        """
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        texts, is_waiting, has_others = [], False, _has_others()
        for thread, _, frames in _users_stacks():
            is_waiting = is_waiting or (has_others and waits_for_others(frames))
            lines = traceback.format_list(frames[-_SHOWN_FRAMES:])
            texts.append(f"thread {names.get(thread, thread)}:\n" + "".join(lines))
        return "".join(texts).rstrip() or _IDLE, is_waiting, tuple(modules_run_here())

    @endpoint
    async def look(self) -> RankLook:
        """Return where the process is, and what it has used of the machine so far."""
        return look_here(context().actor_instance.rank.rank)


def look_here(rank: int) -> RankLook:
    """Return a look at this process. Call it from a thread that runs no code of the user's."""
    stacks = _users_stacks()
    busy, ready, num_bytes, runs_compiler = _used_by_users_threads()
    is_compiling = runs_compiler or any(map(_compiles, _all_but_runtime()))
    # A process alone in its groups waits for nobody, nor does a process that compiles.
    waiting = [frames for _, _, frames in stacks if waits_for_others(frames)]
    is_waiting = bool(waiting) and not is_compiling and _has_others()
    where = ""
    for _, _, frames in stacks:
        # The last stack is usually of the latest call.
        if (frame := users_frame(frames)) is not None:
            where = f"{in_short(frame.filename)}:{frame.lineno}"
            if frame.name != "<module>":
                where = f"`{frame.name}`, {where}"
    places = [[(f.filename, f.lineno) for f in frames] for _, _, frames in stacks]
    return RankLook(
        rank=rank,
        where=where,
        place=hash(tuple((thread, *_instructions(frame)) for thread, frame, _ in stacks)),
        spot=zlib.crc32(repr(places).encode(errors="replace")),
        busy_seconds=busy,
        ready_seconds=ready,
        num_bytes=num_bytes,
        is_waiting=is_waiting,
        may_compute=is_waiting and all(map(_may_compute, waiting)),
        is_compiling=is_compiling,
        is_idle=not stacks,
    )


def _users_stacks() -> list[tuple[int, FrameType, list[traceback.FrameSummary]]]:
    """Return each thread that runs user code: its id, its innermost frame, and its stack.

    The stack has the innermost frame last, and no frames of the runtime.
    """
    current, stacks = threading.get_ident(), []
    for thread, frame in sys._current_frames().items():
        frames = [f for f in traceback.extract_stack(frame) if not _is_runtime(f.filename)]
        if thread != current and not all(_is_background(f.filename) for f in frames):
            stacks.append((thread, frame, frames))
    return stacks


def _all_but_runtime() -> list[FrameType]:
    """Return the innermost frame of each thread, without the threads of the runtime and the thread
    that calls this.

    Threads of torch, which may compile, are among them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    current = threading.get_ident()
    return [
        frame
        for thread, frame in sys._current_frames().items()
        if thread != current and not names.get(thread, "").startswith("monarch-")
    ]


def _has_others() -> bool:
    """Whether the process is in a group with others, for which it could wait."""
    if "torchft" in sys.modules:
        return True  # TorchFT has groups that torch does not know.
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return False
    with contextlib.suppress(Exception):  # A group may be made, or end, at this moment.
        return any(group.size() > 1 for group in list(c10d._world.pg_map))
    return True


def _instructions(frame: FrameType | None) -> list[tuple[int, int]]:
    instructions = []
    while frame is not None:
        instructions.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return instructions


def _compiles(frame: FrameType | None) -> bool:
    """Whether a thread with this innermost frame compiles code, or imports a module."""
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path == _IMPORTS or any(part in path for part in _COMPILES):
            return True
        if any(path.endswith(file) and name in x for file, x in _COMPILING_FUNCTIONS.items()):
            return True
        frame = frame.f_back
    return False


def _used_by_users_threads() -> tuple[float, float, int, bool]:
    """Return what this process's user threads and child processes have used so far.

    That is: processor seconds, seconds of waiting for a processor, bytes read and written, and
    whether one of them is a compiler.
    """
    runtime = {t.native_id for t in threading.enumerate() if t.name.startswith("monarch-")}
    busy, ready, num_bytes, runs_compiler = 0.0, 0.0, 0, False
    tasks = _numbers_in("/proc/self/task")
    if not tasks:
        used = os.times()
        return used.user + used.system, 0.0, 0, False
    for task in tasks:
        if task == os.getpid() or task in runtime:
            continue
        times = _read(f"/proc/self/task/{task}/schedstat").split()
        if len(times) > 1:
            busy += int(times[0]) / 1e9
            ready += int(times[1]) / 1e9
        num_bytes += _bytes_of(f"/proc/self/task/{task}/io")
    for pid in _processes_below(os.getpid()):
        name, _, numbers = _read(f"/proc/{pid}/stat").rpartition(")")
        runs_compiler = runs_compiler or name.partition("(")[2] in _COMPILERS
        fields = numbers.split()
        if len(fields) > 12:
            busy += (int(fields[11]) + int(fields[12])) / _TICKS
        num_bytes += _bytes_of(f"/proc/{pid}/io")
    return busy, ready, num_bytes, runs_compiler


def _processes_below(pid: int) -> list[int]:
    """Return the ids of a process's children and of all processes below them.

    Leaves out what the system does not show.
    """
    pids: list[int] = []
    for task in _numbers_in(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            pids += [int(child), *_processes_below(int(child))]
    return pids


def _bytes_of(path: str) -> int:
    """Return how many bytes were read and written, from a file ``io`` of ``/proc``."""
    lines = (line.partition(":") for line in _read(path).splitlines())
    return sum(int(number) for name, _, number in lines if name in ("rchar", "wchar"))


def _numbers_in(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder)]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stacks_of(witnesses: Any, seconds: float = 3.0) -> list[RankStack]:
    """Ask all ranks for their stacks. The stack of a rank that does not answer within ``seconds``
    has no text; such a rank keeps the GIL, or is stopped.
    """
    flat = witnesses.flatten("rank")
    questions = [flat.slice(rank=rank).stack.call_one() for rank in range(len(flat))]
    stacks = []
    for rank, question in enumerate(questions):
        text, is_waiting, modules = "", False, NOTHING_RUN
        with contextlib.suppress(Exception):
            text, is_waiting, fields = question.get(timeout=seconds)
            modules = ModulesRun(*fields)
        stacks.append(RankStack(rank, text, is_waiting, modules))
    return stacks


def looks_of(witnesses: Any, seconds: float = 3.0) -> list[RankLook]:
    """Return a look at each rank that answers within ``seconds``."""
    flat, looks = witnesses.flatten("rank"), []
    questions = [flat.slice(rank=rank).look.call_one() for rank in range(len(flat))]
    for question in questions:
        with contextlib.suppress(Exception):
            looks.append(question.get(timeout=seconds))
    return looks


def tell_hang(stacks: Sequence[RankStack], doing: str, seconds: float) -> str:
    """Describe a hang for a person: which ranks, since when, and the stack of every rank."""
    ranks = [str(stack.rank) for stack in stacks if stack.hangs]
    if not ranks:
        text = _who_waits(stacks)
    elif len(ranks) > 1:
        text = f"ranks {', '.join(ranks)} hang"
    else:
        text = f"rank {ranks[0]} hangs"
        text += ", and the others wait for it" if len(stacks) > 1 else ""
    return f"{doing} has not ended within {seconds:g} s: {text}\n{tell_stacks(stacks)}"


def _who_waits(stacks: Sequence[RankStack]) -> str:
    """Return a text about the ranks that have not answered, for the case that no rank hangs: what
    they wait for.
    """
    waiting = [stack for stack in stacks if stack.is_waiting]
    ranks = ", ".join(str(stack.rank) for stack in waiting)
    if not waiting:
        return "all ranks have answered meanwhile"
    if len(stacks) == 1:
        return f"rank {ranks} waits for others, and there are none"
    left_out = who_left_out_what([(stack.rank, stack.modules) for stack in stacks])
    if len(waiting) < len(stacks):
        wait = f"ranks {ranks} wait" if len(waiting) > 1 else f"rank {ranks} waits"
        text = f"{wait} in a collective that the others are not in"
        return f"{text}: {left_out}" if left_out else text
    if len({_without_names(stack.text) for stack in waiting}) == 1:
        return "all ranks wait in the same collective, which does not end"
    reason = left_out or "they are in collectives that do not match"
    return f"all ranks wait for each other: {reason}"


def _without_names(text: str) -> str:
    """Return the stacks without the names of threads, which differ between ranks."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("thread "))


def tell_stacks(stacks: Sequence[RankStack]) -> str:
    """Return a text with each rank's state, waiting or hanging, and its stack."""
    parts = []
    for stack in stacks:
        state = "hangs" if stack.hangs else "waits" if stack.is_waiting else "has answered"
        if not stack.text:
            state = "does not answer: it is stopped, or holds the GIL"
        parts.append(f"rank {stack.rank} {state}" + (f"\n{stack.text}" if stack.text else ""))
    return "\n".join(parts)


def waits_for_others(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a thread with these frames, the innermost last, is in a collective."""
    file = _innermost(frames)
    return any(part in file for part in _WAITS)


def _may_compute(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a thread that seems to wait may compute: it is not within a call of a collective."""
    file = _innermost(frames)
    return not any(part in file for part in _COLLECTIVES)


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the file of the innermost frame outside operators and Python's library; "" if none."""
    for frame in reversed(frames):
        if not (frame.filename.endswith(_OPERATOR) or _is_library(frame.filename)):
            return frame.filename
    return ""


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARY) and _INSTALLED not in path


def _is_background(path: str) -> bool:
    return _is_library(path) or "/torch/" in path or "/torchft/" in path


def _is_runtime(path: str) -> bool:
    return path.startswith((OUR_FOLDER, "<frozen")) or path.endswith("/threading.py")
