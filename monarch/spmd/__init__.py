"""torch.distributed on a mesh, and meshes from within torch.distributed."""

from monarch.spmd.elastic import (
    SPMDActor,
    setup_torch_elastic_env,
    setup_torch_elastic_env_async,
)
from monarch.spmd.store import host_mesh_from_store

__all__ = [
    "SPMDActor",
    "host_mesh_from_store",
    "setup_torch_elastic_env",
    "setup_torch_elastic_env_async",
]
