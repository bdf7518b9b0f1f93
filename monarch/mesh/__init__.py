"""Geometry of meshes: which ranks there are, and how they are named. No I/O, no state.

What to open:

    slice        `Slice`: a strided set of ranks, whose dimensions have no names
    region       `Extent`, `Point`, `Shape`, `Region`: named dimensions
    ranges       ranks as people write them
    mesh_trait   the methods of every mesh: `slice`, `flatten`, `rename`, `split`
    value_mesh   `ValueMesh`: a value for each rank
    html         meshes and their values in a notebook
"""

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
