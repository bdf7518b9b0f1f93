"""`monarch.random`: the random numbers of the workers.

Without a seed the ranks draw different numbers; `make_deterministic` gives all ranks the same seed.
While a mesh is active in a thread, torch's own functions act on all its workers:
``torch.manual_seed``, ``torch.seed``, ``torch.get_rng_state``, ``torch.set_rng_state``, and so
``torch.random.fork_rng`` and activation checkpoints.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import torch.random
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from monarch.tensors.api.builtin_functions import (
    get_rng_state_remote,
    random_seed_remote,
    set_manual_seed_remote,
    set_rng_state_remote,
)
from monarch.tensors.api.remote import remote
from monarch.tensors.client.ambient import ambient
from monarch.tensors.client.tensor import Tensor


class State(NamedTuple):
    """The random states of each worker's generators, as tensors of bytes.

    ``cuda`` is the state of the worker's GPU, and zeros if it has none.
    """

    cpu: Any
    cuda: Any


_CPU_BYTES = torch.get_rng_state().numel()
_CUDA_BYTES = 16


def _rule(*args: Any) -> State:
    return State(
        torch.empty(_CPU_BYTES, dtype=torch.uint8), torch.empty(_CUDA_BYTES, dtype=torch.uint8)
    )


def _get_state() -> State:
    has_gpu = torch.cuda.is_available()
    return State(torch.get_rng_state(), torch.cuda.get_rng_state() if has_gpu else _no_gpu())


def _set_state(state: State) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu.cpu())
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda.cpu())


def _new_state(seed: torch.Tensor) -> State:
    number = int(seed)
    cpu = torch.Generator().manual_seed(number).get_state()
    if not torch.cuda.is_available():
        return State(cpu, _no_gpu())
    return State(cpu, torch.Generator("cuda").manual_seed(number).get_state())


def _no_gpu() -> torch.Tensor:
    return torch.zeros(_CUDA_BYTES, dtype=torch.uint8)


def _make_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(0)


get_state = remote(_get_state, propagate=_rule)
"""The ``State`` of each worker's generators."""

set_state = remote(_set_state, propagate="inspect")
"""Give each worker's generators such a ``State``."""

new_state = remote(_new_state, propagate=_rule)
"""The ``State`` of generators that are seeded with a tensor of one number, as a rank tensor."""

make_deterministic = remote(_make_deterministic, propagate="inspect")
"""Have workers use deterministic algorithms, and seed them all alike."""


def _set_bytes(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_set_bytes_remote = remote(_set_bytes, propagate="inspect")


class MeshGenerator:
    """Replaces ``torch.random.default_generator`` in a process that activates meshes.

    Dispatch modes do not see calls of ``torch.manual_seed`` and the like, but all of these call the
    default generator. While no mesh is active, and for all other methods, this object calls the
    generator that it replaced.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def manual_seed(self, seed: int) -> torch.Generator:
        if _has_active_mesh():
            set_manual_seed_remote(seed)
        return self._generator.manual_seed(seed)

    def seed(self) -> int:
        if _has_active_mesh():
            random_seed_remote()
        return int(self._generator.seed())

    def get_state(self) -> torch.Tensor:
        """Return the workers' states as a tensor of the active mesh; without a mesh, this process's
        state."""
        if _has_active_mesh():
            return get_rng_state_remote()
        return self._generator.get_state()

    def set_state(self, state: torch.Tensor) -> torch.Generator:
        if isinstance(state, Tensor):
            set_rng_state_remote(state)
            return self._generator
        if _has_active_mesh():
            with _disable_current_modes():
                _set_bytes_remote(bytes(state.numpy()))
        with _disable_current_modes():
            return self._generator.set_state(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def _has_active_mesh() -> bool:
    """Return whether torch operations of this thread run on a mesh.

    It is false inside a ``FakeTensorMode``, in which torch computes shapes without values.
    """
    if ambient.mesh is None or ambient.mode is None:
        return False
    modes = _get_current_dispatch_mode_stack()
    return ambient.mode in modes and not any(isinstance(mode, FakeTensorMode) for mode in modes)


def follow_torch_seeds() -> None:
    """Make torch's own seeds and random states act on the active mesh, from now on."""
    if not isinstance(torch.random.default_generator, MeshGenerator):
        torch.random.default_generator = MeshGenerator(torch.random.default_generator)
