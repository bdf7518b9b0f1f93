"""An actor runtime for machine learning clusters, with the public API of Monarch.

Import what you use from its homes: ``monarch.actor`` (actors and meshes), ``monarch.job``
(allocations of machines), ``monarch.spmd`` (torch.distributed environments). Nothing here
imports torch.

What to open, by what is to be changed:

- what a failure report says: `errors.py`
"""

from monarch.compat.finder import install

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
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

# First of all, so that whatever this program imports next finds Monarch's addresses.
install()

__version__ = "0.2.0"

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

_MODULES = ("config", "mesh")


def __getattr__(name: str) -> object:
    # Imported when asked for: the command is to be ready for Ctrl-C before all that is there.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{'config' if 'config' in name else 'mesh'}")
    value = globals()[name] = getattr(home, "Slice" if name == "NDSlice" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
