"""Monarch's commands over TorchX, at ``monarch.tools.commands`` and ``monarch.tools.components``.

Programs import them at their top, for clusters that they may never ask for. There is no TorchX
here: each says so when it is called, and what to use instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

TIMEOUT_AFTER_KILL = 300


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"monarch.tools: {what} needs the schedulers of TorchX, which this release does not "
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
    """The console of a debug controller, at its port. Raises ``JobError``, with what to type
    instead, where no controller listens there: calls that stand need no port here."""
    from monarch.debugger.port_console import attach_to_port

    attach_to_port(host, port)


def torchx_runner() -> NoReturn:
    _refuse("torchx_runner()")


def host_mesh(*_: Any, **__: Any) -> NoReturn:
    """A component that describes hosts."""
    _refuse("the component hyperactor.host_mesh()")
