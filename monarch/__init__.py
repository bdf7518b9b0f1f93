"""An actor runtime for machine learning clusters, with the public API of Monarch.

Import what you use from its homes: ``monarch.actor`` (actors and meshes), ``monarch.job``
(allocations of machines), ``monarch.spmd`` (torch.distributed environments). Nothing here
imports torch.
"""

from monarch.config import (
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
)
from monarch.mesh import Extent, MeshTrait, Point, Region, Shape, Slice, ValueMesh

NDSlice = Slice
"""Upstream's other name for it."""

__version__ = "0.1.0"

__all__ = [
    "Extent",
    "MeshTrait",
    "NDSlice",
    "Point",
    "Region",
    "Shape",
    "Slice",
    "ValueMesh",
    "__version__",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
]
