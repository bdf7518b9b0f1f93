"""Older names of ``monarch.spmd``."""

from __future__ import annotations

from monarch.actor import ProcMesh
from monarch.spmd import setup_torch_elastic_env_async
from monarch.tools.network import AddrType


async def setup_env_for_distributed(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Set the environment variables that ``torch.distributed`` reads, in every proc of the mesh."""
    await setup_torch_elastic_env_async(proc_mesh, master_addr, master_port, use_ipaddr)
