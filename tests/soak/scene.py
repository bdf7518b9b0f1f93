"""A project with an allocation of two hosts, a run on it, and a watch beside it: for kills and
soaks of whole runs. All its processes carry a mark, by which they are found and known to be ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from monarch.runs.record.folder import RunFolder, runs_in
from monarch.runtime.hosts.agent_process import AGENT_PROGRAM
from monarch.runtime.procs.zygote_process import ZYGOTE_ARGUMENTS

MONARCH = (sys.executable, "-m", "monarch.cli.main")
MARK = "MONARCH_SOAK_MARK"
VICTIMS = ("client", "host", "zygote", "template", "rank", "watch", "lighthouse")
"""A template is what has forked ranks, a zygote waits to. What steers the groups of fault_tolerant
is in the client; torchft's managers are threads of the ranks."""
RECIPES = ("ddp", "titan", "fault_tolerant")
SECONDS = 240.0
_TOML = """
[job]
kind = "process"
hosts = { trainers = 2 }
preload = ["torch"]

[workspace]
dirs = ["."]
ignore = ["runs/"]
"""
_TASK = """
import time

from torch.nn import functional

NUMBER = {number}


def compute_loss(logits, labels):
    time.sleep(0.02)
{line}    return functional.cross_entropy(logits, labels)
"""
_COMMANDS = {
    "ddp": (
        "run", "ddp", "task=task", "num_epochs=9", "checkpoint_every=30", "evaluate_every=25",
    ),
    "titan": (
        "run", "titan", "--config", "titan.toml", "training.steps=28", "debug.seed=1",
        "checkpoint.interval=10", "validation.freq=15", "model.flavor=test", "metrics.log_freq=1",
    ),
    "fault_tolerant": (
        "run", "fault_tolerant", "task=task", "num_steps=100", "checkpoint_every=30",
        "evaluate_every=25",
    ),
}  # fmt: skip
EVALUATE_EVERY = {"ddp": 25, "titan": 15, "fault_tolerant": 25}
NUM_STEPS = {"ddp": 99, "titan": 28, "fault_tolerant": 100}
FAILING = "    no_such_name\n"
_ZYGOTE = ZYGOTE_ARGUMENTS[-1]
_KEPT_FOLDERS = ("monarch-", "torchinductor_")
_UNFINISHED = re.compile(r"\.(tmp|part|new|partial)\b|^tmp|^\.(?!monarch$|gitignore$|metadata$)")


class Scene:
    """``folder`` is removed with it. ``settings`` of the recipe come after those that are usual."""

    def __init__(self, folder: Path, recipe: str, *settings: str) -> None:
        self.folder, self.recipe = folder, recipe
        self.project, self._tmp = folder / "project", folder / "tmp"
        self._mark = uuid.uuid4().hex
        self._num_writes = self._num_logs = 0
        self._traces = Traces(self)
        self.command = (*_COMMANDS[recipe], "--on-edit-error", "hold", *settings)
        prepared = folder.parent / "titan-tiny"
        is_prepared = prepared.exists()
        for path in (folder, self._tmp, folder / "home"):
            path.mkdir(parents=True)
        self.environment = {
            **os.environ, MARK: self._mark, "TMPDIR": str(self._tmp), "HOME": str(folder / "home"),
            "XDG_STATE_HOME": str(folder / "state"),
            # Threads that spin beside others cost more than they bring for models of this size.
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if recipe == "titan" and is_prepared:
            shutil.copytree(prepared, self.project)
        else:
            self.project.mkdir()
        if recipe == "titan":
            if not is_prepared:
                self.say("recipe", "prepare", "titan-tiny", ".")
                shutil.copytree(self.project, prepared)
            self._model = (self.project / "tiny_llama.py").read_text()
        (self.project / "monarch.toml").write_text(_TOML)
        self.say("trust")
        self.write()
        self.run = self.watch = None  # type: subprocess.Popen[bytes] | None

    # What a person does.

    def say(self, *command: str, seconds: float = SECONDS) -> str:
        """A command of `monarch`, and what it says; RuntimeError where it fails."""
        done = subprocess.run(
            [*MONARCH, *command], cwd=self.project, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=seconds, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"monarch {' '.join(command)}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def begin(self) -> None:
        """The allocation, the watch and the run."""
        self._traces.start()
        self.say("apply")
        if not self.kinds()["host"]:
            raise RuntimeError("no host of the allocation is found: kills would meet nobody")
        self.begin_watch()
        self.begin_run()

    def begin_watch(self) -> None:
        self.watch = self._begin("watch", "sync", "--watch")

    def begin_run(self, *command: str) -> None:
        self.run = self._begin("run", *(command or self.command))

    def begin_author(self) -> subprocess.Popen[bytes]:
        """A single push, as by hand."""
        return self._begin("author", "sync")

    def _begin(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        self._num_logs += 1
        self.log = self.folder / f"{self._num_logs:03}-{name}.log"
        with open(self.log, "wb") as out:
            started = subprocess.Popen(
                [*MONARCH, *command], cwd=self.project, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        return started

    def write(self, line: str = "") -> None:
        """Save the code, other than before; ``line`` is one that is run in the loss."""
        self._num_writes += 1
        if self.recipe != "titan":
            text = _TASK.format(number=self._num_writes, line=line)
            (self.project / "task.py").write_text(text)
            return
        text = self._model
        if line:
            begin = text.index("return", text.index("def compute_loss("))
            text = f"{text[:begin]}{line.strip()}\n    {text[begin:]}"
        (self.project / "tiny_llama.py").write_text(f"{text}\nNUMBER = {self._num_writes}\n")

    def end(self) -> list[str]:
        """End all; what is left that should not be."""
        wrongs = []
        self.say("kill", "--yes")
        for name, one in (("watch", self.watch), ("run", self.run)):
            if one is None:
                continue
            if one.poll() is None:
                one.send_signal(signal.SIGINT)
            try:
                one.wait(20.0)
            except subprocess.TimeoutExpired:
                wrongs.append(f"the {name} does not end by SIGINT")
                one.kill()
                one.wait()
        until(lambda: not self.processes(), 10.0)
        for left in self.processes():
            try:
                wrongs.append(f"an orphan: {left.pid} {' '.join(left.cmdline())[:300]}")
                left.kill()
            except psutil.NoSuchProcess:
                pass
        self._traces.end()
        wrongs += [f"left in /dev/shm: {name}" for name in sorted(self._traces.segments_left())]
        wrongs += [f"left behind: {path}" for path in self._files_left()]
        return wrongs

    def _files_left(self) -> list[Path]:
        """What a run and its allocation need while they are there, and nobody needs afterwards."""
        found = [
            path
            for path in self._tmp.rglob("*")
            if not (path.parent == self._tmp and path.name.startswith(_KEPT_FOLDERS))
        ]
        for folder in (self.project, self.folder / "state"):
            for path in folder.rglob("*"):
                if path.is_socket() or path.is_fifo() or _UNFINISHED.search(path.name):
                    found.append(path)
        found += (self.folder / "state").rglob("job_state.json")
        # Another runtime folder than ours, should one have been taken.
        for path in Path("/tmp").glob("monarch-*/*-*-*"):
            if path.name.split("-")[1] in map(str, self._traces.pids):
                found.append(path)
        return found

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # What is there.

    def processes(self) -> list[psutil.Process]:
        """All that carry our mark, or live in our folder."""
        found = []
        for one in psutil.process_iter():
            try:
                is_ours = one.environ().get(MARK) == self._mark
                is_ours |= Path(one.cwd()).is_relative_to(self.folder)
                if is_ours and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
            except psutil.Error:
                pass
        return found

    def kinds(self) -> dict[str, list[psutil.Process]]:
        """Its processes, by what they are."""
        kinds: dict[str, list[psutil.Process]] = {kind: [] for kind in VICTIMS}
        told = [event["pid"] for event in self.events("lighthouse")]
        processes = self.processes()
        names = {}
        for one in processes:
            try:
                names[one.pid] = " ".join(one.cmdline()), one.ppid()
            except psutil.Error:
                pass
        parents = {parent for _, parent in names.values()}
        for one in processes:
            name, parent = names.get(one.pid, ("", 0))
            if AGENT_PROGRAM in name:
                kinds["host"].append(one)
            elif self.run is not None and one.pid == self.run.pid:
                kinds["client"].append(one)
            elif self.watch is not None and one.pid == self.watch.pid:
                kinds["watch"].append(one)
            elif one.pid in told:
                kinds["lighthouse"].append(one)
            elif _ZYGOTE in name:
                is_forked = _ZYGOTE in names.get(parent, ("", 0))[0]
                kind = "template" if one.pid in parents else "rank" if is_forked else "zygote"
                kinds[kind].append(one)
        return kinds

    def runs(self) -> list[RunFolder]:
        return list(runs_in(self.project / "runs"))

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = [event for run in self.runs() for event in run.events()]
        return [event for event in found if not kinds or event["kind"] in kinds]

    def step(self) -> int:
        rows = [row for run in self.runs() for row in run.metrics()[-1:]]
        return int(rows[-1]["step"]) if rows else 0

    def saves(self) -> int:
        return len(self.events("saved"))

    def digest(self) -> str:
        """Of the last checkpoint: its step, and a digest of model and optimizer."""
        folder = self.runs()[-1].path / "checkpoints"
        if self.recipe == "titan":
            steps = sorted((folder / "titan").glob("step-*"), key=lambda p: int(p.name[5:]))
        else:
            steps = sorted(folder.glob("step-*.pt"))
        state = _load(steps[-1], self.folder)
        whole = hashlib.sha256()
        _take_in(whole, "", state)
        return f"{steps[-1].stem} {whole.hexdigest()[:16]}"


class Traces:
    """The ids of all processes of a scene, and which names in /dev/shm are theirs. Others use the
    machine at the same time, so it has to be looked at while the processes live."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._before: set[str] = set()
        self._segments: set[str] = set()
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.pids: set[int] = set()

    def start(self) -> None:
        if self._thread is None:
            self._before = set(os.listdir("/dev/shm"))
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()

    def segments_left(self) -> set[str]:
        here = set(os.listdir("/dev/shm")) - self._before
        return {name for name in here if name in self._segments or self._has_our_pid(name)}

    def _watch(self) -> None:
        while not self._has_ended.wait(1.0):
            processes = self._scene.processes()
            self.pids |= {one.pid for one in processes}
            if set(os.listdir("/dev/shm")) - self._before - self._segments:
                self._segments |= set().union(*map(_segments_of, processes))

    def _has_our_pid(self, name: str) -> bool:
        return any(int(number) in self.pids for number in re.findall(r"[0-9]{2,9}", name))


def _segments_of(one: psutil.Process) -> set[str]:
    """The names in /dev/shm that it has mapped, or open."""
    try:
        lines = Path(f"/proc/{one.pid}/maps").read_text().splitlines()
        paths = [os.readlink(path) for path in Path(f"/proc/{one.pid}/fd").iterdir()]
    except OSError:
        return set()
    return {line.partition("/dev/shm/")[2] for line in (*lines, *paths) if "/dev/shm/" in line}


def until(is_so: Callable[[], object], seconds: float, pause: float = 0.05) -> bool:
    """Whether it becomes so in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _load(path: Path, folder: Path) -> dict[str, Any]:
    import torch

    if path.is_dir():
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        whole = folder / "whole.pt"
        dcp_to_torch_save(str(path), str(whole))
        # It is the run's own, of this very tool.
        state = torch.load(whole, weights_only=False)
        return {name: value for name, value in state.items() if "dataloader" not in str(name)}
    state = torch.load(path, weights_only=True)
    return {name: state[name] for name in ("model", "optimizer") if name in state}


def _take_in(whole: Any, name: str, value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        whole.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            _take_in(whole, f"{name}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _take_in(whole, f"{name}/{number}", item)


def show(row: dict[str, Any]) -> str:
    return json.dumps(row, default=str)


def new_seed() -> str:
    return str(random.SystemRandom().randrange(10**6))
