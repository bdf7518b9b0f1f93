"""Names of Monarch's own tests that tests of programs with distributed tensors import."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree

from monarch.actor import ProcMesh, this_host
from monarch.tensors.api.remote import Remote
from monarch.tensors.client.device_mesh import DeviceMesh


class BackendType(enum.Enum):
    """The backends that programs name. The choice makes no difference here."""

    MESH = "mesh"
    RS = "rs"
    PY = "py"


class TestingContext:
    """Meshes of procs on this machine, kept from one test to the next."""

    __test__ = False  # No tests in it, whatever its name.

    def __init__(self) -> None:
        self._meshes: dict[tuple[int, int], ProcMesh] = {}
        self._exits = ExitStack()

    def __enter__(self) -> TestingContext:
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    @contextmanager
    def local_device_mesh(
        self, num_hosts: int, gpu_per_host: int, activate: bool = True, **unused: Any
    ) -> Iterator[DeviceMesh]:
        """Yield a mesh with the dimensions host and gpu, active within the block.

        The end of the block raises the first failure that the test has not seen.
        """
        with (
            self.local_engine_on_proc_mesh(num_hosts, gpu_per_host) as mesh,
            mesh.activate() if activate else nullcontext(),
        ):
            yield mesh

    @contextmanager
    def local_engine_on_proc_mesh(self, num_hosts: int, gpu_per_host: int) -> Iterator[DeviceMesh]:
        """Yield the mesh of ``local_device_mesh``, without activating it."""
        size = (num_hosts, gpu_per_host)
        if size not in self._meshes:
            procs = this_host().spawn_procs({"host": num_hosts, "gpu": gpu_per_host})
            self._meshes[size] = procs
            self._exits.callback(lambda: procs.stop().get())
        mesh: DeviceMesh = self._meshes[size]._device_mesh
        client = mesh.client
        try:
            yield mesh
        except BaseException:
            client.log.unasked = []  # There is an error already.
            raise
        if not client.is_closed:
            client.raise_unasked()


def python_local_mesh(*, gpus: int | None = None, hosts: int = 1) -> DeviceMesh:
    """Return a mesh of ``hosts`` times ``gpus`` procs of this machine, with the dimensions host and
    gpu.

    ``gpus`` is by default the number of this machine's GPUs, at least 1. The mesh's ``exit()`` also
    stops the procs.
    """
    num = gpus or torch.cuda.device_count() or 1
    procs = this_host().spawn_procs({"host": hosts, "gpu": num})
    mesh: DeviceMesh = procs._device_mesh
    end = mesh.exit

    def exit() -> None:
        try:
            end()
        finally:
            procs.stop().get()

    vars(mesh)["exit"] = exit
    return mesh


def flatten(tree: Any, cond: Callable[[Any], bool]) -> tuple[list[Any], Callable[..., Any]]:
    """Return the leaves for which ``cond`` is true, and a function that replaces them by others."""
    leaves, spec = _pytree.tree_flatten(tree)
    indexes = [n for n, leaf in enumerate(leaves) if cond(leaf)]

    def unflatten(values: Any) -> Any:
        filled = list(leaves)
        for index, value in zip(indexes, values, strict=True):
            filled[index] = value
        return _pytree.tree_unflatten(filled, spec)

    return [leaves[index] for index in indexes], unflatten


def flattener(
    tree: Any, cond: Callable[[Any], bool] = lambda leaf: True
) -> Callable[[Any], list[Any]]:
    """Return a function that returns some leaves of a tree that is built like ``tree``.

    They are the leaves at the places where ``cond`` is true in ``tree``.
    """
    chosen = list(map(cond, _pytree.tree_leaves(tree)))
    return lambda other: list(itertools.compress(_pytree.tree_leaves(other), chosen))


tree_map = _pytree.tree_map


def __getattr__(name: str) -> int:
    if name in ("_hit", "_miss"):
        return Remote.num_hits if name == "_hit" else Remote.num_misses
    raise AttributeError(name)
