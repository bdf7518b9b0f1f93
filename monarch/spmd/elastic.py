"""torch.distributed on a mesh: every proc gets the environment that ``torchrun`` would give."""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
from collections.abc import Generator, Iterator
from typing import Any

from monarch.actor import Actor, Future, ProcMesh, current_rank, endpoint
from monarch.spmd.surroundings import hosts_beyond, use_interface
from monarch.tools.network import AddrType, address_for, free_port, get_ipaddr, host_name


class SPMDActor(Actor):
    """Runs ordinary SPMD scripts, one copy a proc, with the ranks of the mesh."""

    @endpoint
    def get_host_port(
        self, use_ipaddr: AddrType | None = None, peers: tuple[str, ...] | None = None
    ) -> tuple[str, int]:
        """Return an address of this machine, and a TCP port that is free there.

        ``peers`` are the machines that must reach it; without any it is on loopback.
        """
        port = free_port()
        if use_ipaddr is not None:
            return get_ipaddr(socket.gethostname(), 0, use_ipaddr), port
        return (host_name() if peers is None else address_for(peers)), port

    @endpoint
    def setup_env(self, addr: str, port: int, choose_interface: bool = False) -> None:
        """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and their relatives.

        With ``choose_interface`` gloo and NCCL listen only at the interface towards ``addr``.
        """
        os.environ.update(_environment(addr, port))
        if choose_interface:
            use_interface(addr)

    @endpoint
    def main(self, addr: str, port: int, script_args: list[str]) -> bool:
        """Run ``-m MODULE ARGS`` or ``SCRIPT ARGS`` as ``__main__``, as Python itself would.

        Returns True at its end. Raises ``RuntimeError`` if it exits with another status than 0.
        """
        os.environ.update(_environment(addr, port))
        try:
            if script_args[:1] == ["-m"]:
                sys.argv = script_args[1:]
                runpy.run_module(script_args[1], run_name="__main__", alter_sys=True)
            else:
                script = _found(script_args[0])
                sys.argv = [script, *script_args[1:]]
                with _first_on_path(os.path.dirname(os.path.abspath(script))):
                    runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{sys.argv[0]} exited with {ended.code}") from None
        return True


def _found(script: str) -> str:
    """Return the path of a script, relative to the current folder or else to the workspace."""
    in_workspace = os.path.join(os.environ.get("WORKSPACE_DIR", ""), script)
    return script if os.path.exists(script) or not os.path.exists(in_workspace) else in_workspace


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    """Put ``folder`` first on `sys.path` within the block, as a script may import modules beside
    it.
    """
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _environment(addr: str, port: int) -> dict[str, str]:
    point = current_rank()
    sizes = list(point.extent.sizes)
    world = point.extent.nelements
    local_world = sizes[-1] if sizes else 1
    local_rank = point.rank % local_world
    return {
        "MASTER_ADDR": addr,
        "MASTER_PORT": str(port),
        "RANK": str(point.rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(point.rank // local_world),
        "GROUP_WORLD_SIZE": str(world // local_world),
        "ROLE_RANK": str(point.rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "rank",
    }


def _steps(
    proc_mesh: ProcMesh,
    master_addr: str | None,
    master_port: int | None,
    use_ipaddr: AddrType | None,
) -> Generator[Future[Any], Any, None]:
    """Give every proc the environment of ``torch.distributed``, as a generator of calls to await.

    It yields the future of each call; the caller sends back the result. So sync and async callers
    share this code.
    """
    if (master_addr is None) != (master_port is None):
        raise AssertionError("give both of master_addr and master_port, or neither")
    actors = proc_mesh.spawn("spmd", SPMDActor)
    is_ours = master_addr is None
    if is_ours:
        first = actors.slice(**dict.fromkeys(proc_mesh.sizes, 0))
        peers = hosts_beyond(proc_mesh)
        master_addr, master_port = yield first.get_host_port.call_one(use_ipaddr, peers)
    yield actors.setup_env.call(master_addr, master_port, is_ours and use_ipaddr is None)
    yield actors.stop()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Give every proc of the mesh the environment of ``torch.distributed``'s ``env://``.

    Without ``master_addr`` and ``master_port`` the proc at rank 0 chooses an address of its host:
    loopback if all procs are on one machine. torch's store, which ``init_process_group`` opens
    there, listens on all interfaces all the same, and accepts every client.
    """
    steps = _steps(proc_mesh, master_addr, master_port, use_ipaddr)
    with contextlib.suppress(StopIteration):
        answer = None
        while True:
            answer = await steps.send(answer)


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Do the same as ``setup_torch_elastic_env_async``, for code that is not async."""
    steps = _steps(proc_mesh, master_addr, master_port, use_ipaddr)
    with contextlib.suppress(StopIteration):
        answer = None
        while True:
            answer = steps.send(answer).get()
