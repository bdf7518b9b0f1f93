"""An actor runtime for machine learning clusters, with the public API of Monarch.

Import what you use from its homes: ``monarch.actor`` (actors and meshes), ``monarch.job``
(allocations of machines), ``monarch.spmd`` (torch.distributed environments). Nothing here
imports torch. ``errors`` has every error that users meet, ``ours`` proves that a folder may be
removed, ``python_start`` has the arguments of each Python that we start, ``offers`` lets lower
layers use things of higher ones, ``whole_file`` writes files whole or not at all, ``version`` is
the package's version. ARCHITECTURE.md says what each folder is for.
"""

from monarch.compat.finder import install
from monarch.offers import offer
from monarch.version import __version__

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from typing import Any

    from monarch.config import (
        clear_runtime_config,
        configure,
        configured,
        get_global_config,
        get_runtime_config,
    )
    from monarch.mesh import Extent, MeshTrait, Point, Region, Shape, Slice, ValueMesh
    from monarch.spmd.steps import step
    from monarch.tensors.api.functions import function_resolvers as function_resolvers
    from monarch.tensors.api.gradients import grad_function as grad_function
    from monarch.tensors.api.gradients import grad_generator as grad_generator
    from monarch.tensors.api.opaque import OpaqueRef as OpaqueRef
    from monarch.tensors.api.recordings import coalescing as coalescing
    from monarch.tensors.api.recordings import compile as compile
    from monarch.tensors.api.recordings import explain as explain
    from monarch.tensors.api.remote import call_on_shard_and_fetch as call_on_shard_and_fetch
    from monarch.tensors.api.remote import remote as remote
    from monarch.tensors.api.trees import fetch_shard as fetch_shard
    from monarch.tensors.api.trees import inspect as inspect
    from monarch.tensors.api.trees import reduce as reduce
    from monarch.tensors.api.trees import reduce_ as reduce_
    from monarch.tensors.api.trees import show as show
    from monarch.tensors.api.trees import slice_mesh as slice_mesh
    from monarch.tensors.api.trees import to_mesh as to_mesh
    from monarch.tensors.client.ambient import TensorStream
    from monarch.tensors.client.ambient import get_active_mesh as get_active_mesh
    from monarch.tensors.client.ambient import get_active_stream as get_active_stream
    from monarch.tensors.client.ambient import no_mesh as no_mesh
    from monarch.tensors.client.device_mesh import DeviceMesh as DeviceMesh
    from monarch.tensors.client.device_mesh import RemoteProcessGroup as RemoteProcessGroup
    from monarch.tensors.client.remote_exception import RemoteException as RemoteException
    from monarch.tensors.client.tensor import Tensor as Tensor

    NDSlice = Slice
    """Upstream's other name for it."""
    Stream = TensorStream

# First of all, so that later imports of this program find Monarch's addresses.
install()


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
    "step",
]

_MODULES = ("builtins", "common", "config", "gradient", "mesh", "random")

# The public names, by the module that has them; "A=B" is B there. The tensor engine imports torch.
_NAMES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in {
        "actor": "Future ActorFuture=Future",
        "compat.commands": "mast_reserve",
        "compat.words": "Selection",
        "config": "clear_runtime_config configure configured get_global_config get_runtime_config",
        "mesh": "Extent MeshTrait NDSlice=Slice Point Region Shape Slice ValueMesh",
        "spmd.steps": "step",
        "tensors.api.trees": "fetch_shard inspect reduce reduce_ show slice_mesh to_mesh",
        "tensors.api.functions": "function_resolvers",
        "tensors.api.gradients": "grad_function grad_generator",
        "tensors.api.opaque": "OpaqueRef",
        "tensors.api.recordings": "coalescing compile explain",
        "tensors.api.remote": "call_on_shard_and_fetch remote",
        "tensors.client.ambient": "Stream=TensorStream get_active_mesh get_active_stream no_mesh",
        "tensors.client.device_mesh": "DeviceMesh RemoteProcessGroup",
        "tensors.client.remote_exception": "RemoteException",
        "tensors.client.tensor": "Tensor",
    }.items()
    for name in names.split()
}


# Names that `offers` imports, and the modules that have them.
_OFFERS = {
    "MeshView": "view.mesh_view",
    "debug_controller": "compat.debug_controller",
    "device_mesh_of": "tensors.engine",
    "rref": "tensors.api.actor_results",
}


# Names that users of Ray may type, and our names for the same.
_OF_RAY = {
    "get": "the future of a call has it, `foo.add.call(1).get()`",
    "init": "nothing is to be started: `from monarch.actor import this_host`",
    "put": "arguments are sent as they are; for large tensors that stay, see `monarch.rdma`",
    "wait": "`foo.add.stream(1)` gives a future for each rank, in order of arrival",
}


def _from(module: str, name: str) -> "Any":
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


@offer
def _offered(name: str) -> "Any":
    return _from(_OFFERS[name], name)


def __getattr__(name: str) -> object:
    # Imported when asked for, so that the command is soon ready for Ctrl-C.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return globals().setdefault(name, _from(*_NAMES[name]))
    hint = f": {_OF_RAY[name]}" if name in _OF_RAY else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def load_ipython_extension(shell: object) -> None:
    """Add monarch's magics and short errors to a notebook, for ``%load_ext monarch``."""
    _from("view.notebook", "load")(shell)


def unload_ipython_extension(shell: object) -> None:
    """Restore IPython's own errors, for ``%unload_ext monarch``."""
    _from("view.notebook", "unload")(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_NAMES})
