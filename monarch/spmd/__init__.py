"""torch.distributed on a mesh, and meshes from within torch.distributed.

What to open:

    elastic               the environment that ``torchrun`` would give, for every proc
    surroundings          which machines a mesh is on, and the network between them
    steps                 `monarch.step`: where a script lets new code in
    store                 a mesh of hosts from within a ``torchrun`` job
"""

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
