"""Geometry of meshes: which ranks there are, and how they are named. No I/O, no state."""

from monarch.mesh.mesh_trait import MeshTrait
from monarch.mesh.region import DimensionNotFound, Extent, Point, Region, Shape
from monarch.mesh.slice import Slice
from monarch.mesh.value_mesh import ValueMesh

__all__ = [
    "DimensionNotFound",
    "Extent",
    "MeshTrait",
    "Point",
    "Region",
    "Shape",
    "Slice",
    "ValueMesh",
]
