"""The device mesh of a proc mesh: its workers are spawned here."""

from __future__ import annotations

import threading
from collections import Counter

from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import ProcMesh
from monarch.mesh.slice import row_major_strides
from monarch.tensors.api.random_state import follow_torch_seeds
from monarch.tensors.client.client import Client
from monarch.tensors.client.device_mesh import DeviceMesh
from monarch.tensors.worker.worker import HandOverDesk, TensorWorker

_lock = threading.Lock()


def device_mesh_of(procs: ProcMesh) -> DeviceMesh:
    """Return the mesh of these procs' workers, which are spawned at the first request.

    They are spawned again after an ``exit()``. Slices and other views of one proc mesh share the
    workers. Raises ``NotImplementedError`` for a received slice, whose whole mesh this process does
    not know.
    """
    whole = procs._whole
    follow_torch_seeds()
    with _lock:
        client = whole._tensor_engine
        if client is None or (client.is_closed and not whole._is_stopped):
            client = whole._tensor_engine = _new_client(whole)
    return client.everybody._new_with_shape(procs._shape)  # type: ignore[no-any-return]


def spawn_tensor_engine(proc_mesh: ProcMesh) -> DeviceMesh:
    """Return the device mesh of ``proc_mesh``, as the first ``ProcMesh.activate`` does."""
    return device_mesh_of(proc_mesh)


def _new_client(procs: ProcMesh) -> Client:
    ndslice = procs._shape.ndslice
    if ndslice.offset or ndslice.strides != row_major_strides(ndslice.sizes):
        raise NotImplementedError(
            "NYI: proc mesh for workers must be contiguous and start at offset 0: activate the "
            "mesh that was spawned, and slice its device mesh"
        )
    hosts = Counter(proc.host_uid for proc in procs._procs)
    machines = {proc.machine or proc.host_uid for proc in procs._procs}
    ranks = {proc.uid: rank for rank, proc in enumerate(procs._procs)}
    with _disable_current_modes():
        workers = procs.spawn("tensor_worker", TensorWorker, len(ranks), max(hosts.values()))
    client = Client(workers, ranks, machines, lambda: procs.spawn("tensor_desk", HandOverDesk))
    DeviceMesh.of_client(client, procs._shape)
    return client
