"""Detached runs, which run on a host of the allocation: starts them, attaches, and shows them."""

from __future__ import annotations

import io
import json
import os
import queue
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from monarch.cli.allocation.users import check_free
from monarch.cli.hosts.exec import LiveHost, all_live, up_job
from monarch.cli.project import PROJECT_FILE, load_project
from monarch.cli.run.recipe import outline_here
from monarch.cli.run.run import RunRequest, recipe_of
from monarch.cli.terminal.confirm import is_somebody_there
from monarch.cli.terminal.phases import phase
from monarch.cli.terminal.volume import say
from monarch.core.log_lines import clean
from monarch.errors import JobError
from monarch.job import JobTrait
from monarch.job.contexts import JOB_PATH_VARIABLE
from monarch.job.exec.exec_run import ExecRun, Program
from monarch.job.exec.ranks import hosts_of, ranks_on
from monarch.job.exec.terminal_session import TerminalSession, terminal_size
from monarch.net.identifiers import new_uid
from monarch.net.machine import machine_id
from monarch.python_start import module_arguments
from monarch.runs import carry, receive_state
from monarch.runs.detached import (
    PROGRAM_VARIABLE,
    THERE_VARIABLE,
    DetachedRun,
    copies_of_running,
    note_remote,
)
from monarch.runs.record.folder import REMOTE, RUNS, RunFolder, find_run, make_runs_folder, runs_in
from monarch.runtime.client_agent import client
from monarch.runtime.links.secret import SECRET_VARIABLES
from monarch.runtime.programs.remote_program import ProgramEnd, RemoteProgram

_BEGIN_SECONDS = 120.0
_LOOK_SECONDS = 0.3
_FAR_LOOK_SECONDS = 1.0
# Variables of a detached run on another machine, by the beginning of their names.
_PASSED_ON = (
    "MONARCH_", "NCCL_", "GLOO_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LANG", "TERM",
)  # fmt: skip
_NOT_PASSED_ON = ("MONARCH_RUNTIME_DIR", "MONARCH_LOG_DIR", *SECRET_VARIABLES)
_SIGINT = 2
_CTRL_C = b"\x03"


def start(options: Mapping[str, Any]) -> None:
    """Start a run on the first host of the allocation and detach from it.

    ``options`` are those of ``monarch run``.
    """
    if options["attach"] is False or options["plan"] or options["show_origin"]:
        raise click.UsageError("--detach goes without --local, --plan and --show-origin")
    recipe, config_file = options["recipe"] or recipe_of(None), options["config_file"]
    job = up_job()
    request = RunRequest(recipe, config_file, options["overrides"], options["procs"])
    outline = outline_here(request.recipe)
    if outline is not None:
        try:
            request.load(outline, None)  # Reports mistakes in it before anything is started.
        finally:
            outline.forget()
    elif recipe.endswith(".py") and not Path(recipe).exists():
        raise JobError(f"there is no file {recipe}")
    check_free(job, request.command)
    host = all_live(job, hosts_of(job)[:1])[0]
    is_here = host.state.machine == machine_id()
    words = ["run", *_words(options)]
    uid = new_uid()
    env = {PROGRAM_VARIABLE: f"{uid} {host.host.url}"}
    if is_here:
        command = [sys.executable, *module_arguments("monarch.cli.main", *words)]
        directory = os.getcwd()
        env = {**{k: v for k, v in os.environ.items() if k not in SECRET_VARIABLES}, **env}
    else:
        _check_in_workspace(recipe, config_file)
        state_file = _bring_project(job, host)
        command = module_arguments("monarch.cli.main", *words)
        directory = host.state.workspace
        env |= {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_PASSED_ON) and name not in _NOT_PASSED_ON
        }
        env |= {THERE_VARIABLE: "1", "MONARCH_RUNS_DIR": _runs_there()}
        env[JOB_PATH_VARIABLE] = state_file
    output: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    program = RemoteProgram(client().node, host.address, lambda _, data: output.put(data), uid=uid)
    program.run(
        command,
        env=env,
        directory=directory,
        size=terminal_size(),
        is_python=not is_here,
        is_kept=True,
        title=" ".join(request.command),
    )
    if not program.started.wait(_BEGIN_SECONDS) or program.started.value.error:
        error = program.started.value.error if program.started.is_set else "it gives no answer"
        raise JobError(f"cannot start the run on {host.host.name}: {error}")
    program.view((0, 0))
    run = _wait_until_begun(program, host, is_here=is_here)
    if run is None:
        while not output.empty():
            _echo(output.get())
        sys.exit(program.ended.value.status or 1)
    program.leave()
    say(f"{run.path} goes on, on {host.host.name}, when this terminal is closed")
    say(f"`monarch runs attach {run.name}` shows it, and ends it")


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return the command that the host will run, in the words typed here."""
    words = [options["recipe"], *options["overrides"], "--attach", "--yes"]
    for name, value in options.items():
        if name in ("recipe", "overrides", "attach", "yes") or value in (None, False):
            continue
        option = "--config" if name == "config_file" else f"--{name.replace('_', '-')}"
        words.append(option if value is True else f"{option}={value}")
    return words


def _echo(data: bytes) -> None:
    """Print output that was written for a terminal; without a terminal, drop its control codes."""
    text = data.decode(errors="replace").replace("\r\n", "\n")
    click.echo(text if sys.stdout.isatty() else clean(text), nl=False)


def _wait_until_begun(program: RemoteProgram, host: LiveHost, *, is_here: bool) -> RunFolder | None:
    """Wait for the run's folder and return it; ``None`` if the program ends without making one.

    Raises ``JobError`` if the run does not begin in time.
    """
    deadline = time.monotonic() + _BEGIN_SECONDS
    with phase(f"the run begins on {host.host.name}"):
        while True:
            is_over = program.ended.wait(_LOOK_SECONDS if is_here else _FAR_LOOK_SECONDS)
            if is_here:
                begun = next((run for run in runs_in() if _is_of(run, program.uid)), None)
            else:
                begun = fetch(host, program.uid, is_running=not is_over)
            if begun is not None or is_over:
                return begun
            if time.monotonic() > deadline:
                raise JobError(
                    f"the run on {host.host.name} has not begun within {_BEGIN_SECONDS:.0f} s; "
                    "`monarch status` and `monarch logs` tell more"
                )


def _is_of(run: RunFolder, uid: str) -> bool:
    detached = DetachedRun.of(run)
    return detached is not None and detached.uid == uid


def _check_in_workspace(recipe: str, config_file: str | None) -> None:
    """Raise ``JobError`` if the recipe's file or the config does not exist in the workspace."""
    folders = [Path(entry.local).resolve() for entry in load_project(None).make_workspace().folders]
    for path in (recipe.partition(":")[0], config_file):
        if path and (path.endswith((".py", ".toml")) or "/" in path):
            if not Path(path).exists():
                raise JobError(f"there is no {path}")
            real = Path(path).resolve()
            if Path(path).is_absolute() or not any(real.is_relative_to(entry) for entry in folders):
                raise JobError(
                    f"{path} is not in the workspace, so the host does not have it: put it there, "
                    "and name it from this folder"
                )


def _runs_there() -> str:
    """Return the folder on a remote host for this folder's runs.

    It is in the user's home folder, so it stays when the allocation ends.
    """
    origin = f"{os.uname().nodename}:{os.getcwd()}"
    plain = re.sub(r"[^\w.-]", "_", Path.cwd().name)
    name = f"{plain}-{sha256(origin.encode()).hexdigest()[:8]}"
    return f"~/.monarch/runs/{name}"


def _bring_project(job: JobTrait, host: LiveHost) -> str:
    """Send the workspace and the allocation's state to the run's host.

    Return the path of the state on that host. The host signs it with its own user's key.
    """
    if Path(PROJECT_FILE).exists():
        pushed = subprocess.run(
            [sys.executable, *module_arguments("monarch.cli.main", "sync", "--yes")], check=False
        )
        if pushed.returncode not in (0, 3):
            sys.exit(pushed.returncode)
    script = Path(receive_state.__file__).read_bytes()
    path = f"{_runs_there()}/.job_state.json"
    end, output = _run_there(host, [path], job.dumps(), script=script)
    if end.status:
        raise JobError(
            f"cannot keep the state of the job on {host.host.name}: {end.reason} {output.decode()}"
        )
    return output.decode().strip()


def _run_there(
    host: LiveHost, arguments: Sequence[str], stdin: bytes, *, script: bytes
) -> tuple[ProgramEnd, bytes]:
    """Run a Python script on a host; return its end and its output."""
    program = Program(tuple(arguments), {}, "", script, is_python=True)
    rank = ranks_on([(host.address, host.host.name)], {})
    run = ExecRun(client().node, rank, program)
    output: list[bytes] = []
    try:
        run.programs[0].write(stdin)
        run.end_input()
        (end,) = run.wait(lambda stream, data: output.append(data) if stream == 1 else None)
    finally:
        run.close()
    return end, b"".join(output)


def fetch(host: LiveHost, uid: str, *, is_running: bool) -> RunFolder | None:
    """Copy a run's new data from another machine, except checkpoints; return the local copy.

    ``None`` if the data cannot be read there, or is not that of a run yet.
    """
    local_files = {}
    for path in RUNS.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            local_files[str(path.relative_to(RUNS))] = [status.st_size, int(status.st_mtime)]
    script = Path(carry.__file__).read_bytes()
    end, archive = _run_there(
        host, [_runs_there(), uid], json.dumps(local_files).encode(), script=script
    )
    if end.status:
        return None
    make_runs_folder(RUNS)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        for member in files.getmembers():
            if member.isfile() and ".." not in Path(member.name).parts:
                target = RUNS / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = files.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
                os.utime(target, (member.mtime, member.mtime))
    copy = next((run for run in runs_in() if _is_of(run, uid)), None)
    if copy is not None:
        note_remote(copy, is_running=is_running, host=host.host.name, url=host.host.url)
        copy.link_as_latest()
    return copy


def refresh() -> None:
    """Update the local copies of runs on other machines; costs nothing if there are none."""
    copies = copies_of_running()
    if not copies:
        return
    try:
        job = up_job()
        hosts = {live.host.url: live for live in all_live(job, hosts_of(job)[:1])}
    except JobError:
        hosts = {}
    for run in copies:
        detached = DetachedRun.of(run)
        host = hosts.get(detached.url) if detached is not None else None
        if detached is None or host is None:
            note_remote(run, is_running=False)  # It has ended with its allocation.
            continue
        fetch(host, detached.uid, is_running=_goes_on(host, detached.uid))


def _goes_on(host: LiveHost, uid: str) -> bool:
    return any(p["uid"] == uid and p["status"] is None for p in host.state.programs)


def attach(name: str) -> None:
    """Show a detached run in this terminal, until it ends or the person leaves."""
    refresh()
    run = find_run(name)
    detached = DetachedRun.of(run)
    if detached is None:
        raise JobError(
            f"{run.name} was not started with --detach, so there is nothing to attach to: "
            f"`monarch runs logs -f {run.name}` follows what its ranks print"
        )
    if run.running_pid is None:
        raise JobError(
            f"{run.name} is {run.status}: `monarch runs show {run.name}` tells how it went"
        )
    job = up_job()
    host = next((candidate for candidate in hosts_of(job) if candidate.url == detached.url), None)
    if host is None:
        raise JobError(f"the host of {run.name} is not in this allocation any more")
    live = all_live(job, [host])[0]
    if is_somebody_there():
        end = _on_terminal(live, run, detached.uid)
    else:
        end = _plainly(live, detached.uid)
    if (run.path / REMOTE).exists():
        fetch(live, detached.uid, is_running=end is None)
    if end is None:
        say(f"{run.name} goes on; `monarch runs attach {run.name}` shows it again")
        return
    if end.reason:
        raise JobError(f"{run.name}: {end.reason}")
    sys.exit(end.status)


def _plainly(host: LiveHost, uid: str) -> ProgramEnd | None:
    """Print the program's output until it ends, without a terminal; return its end.

    After Ctrl-C the program goes on, and the result is ``None``.
    """
    output: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    program = RemoteProgram(
        client().node, host.address, lambda stream, data: output.put((stream, data)), uid=uid
    )
    program.view((0, 0))
    try:
        while True:
            is_over = program.ended.wait(_LOOK_SECONDS)
            while not output.empty():
                stream, data = output.get()
                _echo(data)
                program.shown(stream, len(data))
            if is_over:
                return program.ended.value
    except KeyboardInterrupt:
        program.leave()
        return None


def _on_terminal(host: LiveHost, run: RunFolder, uid: str) -> ProgramEnd | None:
    is_interrupted = threading.Event()

    def on_keys(keys: bytes) -> bytes:
        if _CTRL_C in keys:
            is_interrupted.set()
            return b""
        return keys

    session = TerminalSession(client().node, host.address, uid=uid, on_keys=on_keys)
    session.program.view(terminal_size())
    while True:
        end = session.serve(is_interrupted.is_set)
        if end is not None:
            return end
        is_interrupted.clear()
        choice = _ask(run)
        if choice == "d":
            session.program.leave()
            return None
        if choice == "e":
            session.program.signal(_SIGINT)


def _ask(run: RunFolder) -> str:
    """Ask, after Ctrl-C, what to do with a detached run.

    Return "d" to leave it to itself, "e" to end it; any other answer continues the watching.
    """
    click.echo()
    question = f"{run.name}: (d)etach and leave it to itself, (e)nd it, or Enter to go on"
    try:
        answer = click.prompt(question, default="", show_default=False, prompt_suffix=" ")
    except (click.Abort, KeyboardInterrupt):
        return "d"
    return str(answer).strip().lower()[:1]
