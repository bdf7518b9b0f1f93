"""Monarch's commands as functions, at ``monarch.tools.commands`` and ``monarch.tools.components``.

The commands for a folder's job work. Those that use TorchX do not: programs import them at their
top, for clusters that they may never use, and each function says what to use instead when it is
called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from monarch.actor import HostMesh
from monarch.errors import JobError
from monarch.job import DEFAULT_JOB_PATH as DEFAULT_JOB_PATH
from monarch.job import JobState, contexts, exec_command, job_load, set_current_job, shell
from monarch.job.current_job import load_current_job

TIMEOUT_AFTER_KILL = 300
MONARCH_DIR = ".monarch"
"""Where Monarch keeps contexts. Here they are in the user's own state folder."""


def _refuse(call: str) -> NoReturn:
    raise NotImplementedError(
        f"monarch.tools: {call} needs the schedulers of TorchX, which this release does not "
        "drive. Make the allocation with a job of monarch.job (ProcessJob on this machine; SSHJob, "
        "SlurmJob, KubernetesJob or RayJob on others) or `monarch apply`, or start `monarch host` "
        "on each machine and use attach_to_workers; end it with job.kill() or `monarch kill`"
    )


def create(config: Any, name: str | None = None) -> NoReturn:
    _refuse(f"create() on scheduler {getattr(config, 'scheduler', None)!r}")


def info(server_handle: str) -> NoReturn:
    _refuse(f"info({server_handle!r})")


def kill(server_handle: str) -> NoReturn:
    _refuse(f"kill({server_handle!r})")


def kill_and_confirm(server_handle: str, timeout_after_kill: int = TIMEOUT_AFTER_KILL) -> NoReturn:
    _refuse(f"kill_and_confirm({server_handle!r})")


async def server_ready(server_handle: str, check_interval: Any = None) -> NoReturn:
    _refuse(f"server_ready({server_handle!r})")


async def get_or_create(name: str, config: Any, *_: Any, **__: Any) -> NoReturn:
    _refuse(f"get_or_create({name!r})")


def bounce(server_handle: str) -> NoReturn:
    _refuse(f"bounce({server_handle!r})")


def stop(server_handle: str) -> NoReturn:
    _refuse(f"stop({server_handle!r})")


def debug(host: str, port: int) -> None:
    """Connect the terminal with a debug controller at ``port``, until it ends the connection.

    Raises ``JobError`` if none listens there. The error names `monarch debug`, which opens held
    calls without a port.
    """
    from monarch.debugger.port_console import attach_to_port

    attach_to_port(host, port)


def torchx_runner() -> NoReturn:
    _refuse("torchx_runner()")


def mast_reserve(*_: Any, **__: Any) -> NoReturn:
    """Raise an error: hosts of Meta's own scheduler are not supported."""
    _refuse("mast_reserve()")


def host_mesh(*_: Any, **__: Any) -> NoReturn:
    """Raise an error: components that describe hosts are not supported."""
    _refuse("the component hyperactor.host_mesh()")


def apply_job(module_path: str | None = None) -> None:
    """Start a job, and wait until all its hosts answer.

    It is the job ``module_path`` (MODULE.NAME), or else the job of the context in use. Raises
    ``JobError`` if there is no such job, or it cannot be started.
    """
    if module_path is not None:
        set_current_job(module_path)
    for hosts in load_current_job().state()._hosts.values():
        hosts.initialized.get()


def context_create(name: str) -> None:
    """Make a context: a name under which this folder can have another job.

    Does not switch to it. Raises ``JobError`` if the name is taken or not valid.
    """
    contexts.create_context(name)
    print(f"Created context '{name}'")


def context_use(name: str) -> None:
    """Switch to a context; it is created if needed."""
    if name not in contexts.all_contexts():
        contexts.create_context(name)
    contexts.use_context(name)
    print(f"Switched to context '{name}'")


def context_rm(name: str) -> None:
    """End a context's allocation, and remove the context."""
    state = contexts.state_of(name)
    if state.exists():
        job = job_load(state)
        job.kill()
    contexts.remove_context(name)
    print(f"Removed context '{name}'")


def context_ls() -> None:
    """Print the contexts, the one in use with a star."""
    current = contexts.current_context()
    for name in contexts.all_contexts():
        print(f"{'*' if name == current else ' '} {name}")


def exec_on_job(
    cmd: list[str],
    run_all: bool = False,
    mesh_name: str | None = None,
    point_str: str | None = None,
    env: list[str] | None = None,
    workdir: str | None = None,
    kill: bool = False,
    script: str | None = None,
    per_host: dict[str, int] | None = None,
) -> int:
    """Run ``cmd`` on hosts of the current job; return the largest exit status.

    By default it runs on the first rank of the first mesh. ``run_all`` runs it on all meshes,
    ``mesh_name`` on one mesh, ``point_str`` at a point of the mesh. Output is shown while it runs.
    ``env`` has KEY=VALUE; ``script`` is a file whose text bash runs ("-": standard input). Raises
    ``ValueError`` for an unknown mesh, ``JobError`` if the job cannot be started.
    """
    if script is not None:
        text = sys.stdin.read() if script == "-" else Path(script).read_text()
        cmd = ["bash", "-c", text]
    job = load_current_job()
    state = job.state()
    meshes = [_mesh_named(state, mesh_name)]
    if run_all:
        meshes = list(state._hosts.values())
    point = _point(point_str) if point_str is not None else None
    options: dict[str, Any] = {
        "env": _variables(env),
        "workdir": workdir,
        "point": point,
        "per_host": per_host,
    }
    if not run_all and mesh_name is None and point is None:
        options["rank"] = 0
    status = max(exec_command(mesh, cmd, **options).get() for mesh in meshes)
    if kill:
        job.kill()
    return status


def shell_on_job(
    mesh_name: str | None = None,
    point_str: str | None = None,
    env: list[str] | None = None,
    workdir: str | None = None,
    kill: bool = False,
) -> int:
    """Open a shell in this terminal on a host of the current job; return its exit status.

    It is the first host of the mesh, or the host at ``point_str``. The mesh is by default the job's
    first. Raises ``ValueError`` for an unknown mesh, ``JobError`` if the job cannot be started.
    """
    job = load_current_job()
    mesh = _mesh_named(job.state(), mesh_name)
    at: Mapping[str, int] = _point(point_str) if point_str else dict.fromkeys(mesh.sizes, 0)
    status = shell(mesh.slice(**at) if at else mesh, env=_variables(env), workdir=workdir)
    if kill:
        job.kill()
    return status


def kill_job(name: str | None = None) -> None:
    """End the allocation of the context ``name``, by default the one in use.

    Raises ``JobError`` if the context has no allocation.
    """
    state = contexts.state_of(name or contexts.current_context())
    if not state.exists():
        raise JobError("no allocation is up in this context")
    job = job_load(state)
    job.kill()


def _mesh_named(state: JobState, name: str | None) -> HostMesh:
    meshes = state._hosts
    if not meshes:
        raise RuntimeError("Job has no host meshes")
    if name is not None and name not in meshes:
        raise ValueError(f"Mesh {name!r} not found. Available: {list(meshes)}")
    return meshes[name] if name is not None else next(iter(meshes.values()))


def _point(text: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {dim.strip(): int(number) for dim, _, number in pairs}


def _variables(pairs: Sequence[str] | None) -> dict[str, str]:
    for pair in pairs or ():
        if "=" not in pair:
            raise ValueError(f"Invalid env var (expected KEY=VALUE): {pair!r}")
    split = (pair.partition("=") for pair in pairs or ())
    return {name: value for name, _, value in split}
