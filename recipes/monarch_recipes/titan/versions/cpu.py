"""TorchTitan on a machine without a GPU, with nothing of TorchTitan's edited.

TorchTitan takes three things for granted that a CPU build of torch has not: a device module that
counts memory, the package ``triton``, and a backend that can scale while it reduces. Where there is
a GPU, or another accelerator, ``import_torchtitan`` changes nothing; NCCL stays what it is.
Elsewhere each of the three is answered where TorchTitan asks, and nowhere else: torch itself sees
that there is no triton.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

# The files of TorchTitan that import triton, in 0.2 and in 0.3: kernels of mixtures of experts.
_KERNELS = (
    "torchtitan.models.moe.kernels",
    "torchtitan.distributed.minimal_async_ep.kernels",
)


def is_cpu_only() -> bool:
    """Whether torch finds no accelerator here."""
    return not torch.accelerator.is_available()


def import_torchtitan() -> None:
    """Import TorchTitan's trainer; without an accelerator, such that it trains on the CPU.

    Call it before anything else of a program imports ``torchtitan``. Calling it again is free.
    """
    if "torchtitan.train" in sys.modules:
        return
    if not is_cpu_only():
        with quiet_imports():
            importlib.import_module("torchtitan.train")
        return
    with quiet_imports(), _device_is_cpu(), _stand_in_for_triton():
        train = importlib.import_module("torchtitan.train")
    utils = sys.modules["torchtitan.tools.utils"]
    # It would run lspci, and then take the CPU for an A100; the speed of a CPU is not known.
    utils.get_peak_flops = lambda device_name: float("inf")  # type: ignore[attr-defined]
    train.Trainer.__init__ = _summing(train.Trainer.__init__)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Within, libraries that are imported do not tell what else they have found, as which versions
    of JAX and TensorFlow; their warnings stay."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        root.setLevel(before)


def _summing(init: Any) -> Any:
    """A trainer's `__init__` after which FSDP sums plainly: gloo has no sum that scales."""

    @functools.wraps(init)
    def wrapped(trainer: Any, *args: Any, **kwargs: Any) -> None:
        init(trainer, *args, **kwargs)
        sum_plainly(trainer)

    return wrapped


def take_storage_away(model_class: type[Any]) -> None:
    """From now on, trainers are made of tensors that have none, and their models are not
    initialized; for a process that ends with its trainer."""
    torch.nn.Module.to_empty = lambda self, **device: self
    model_class.init_weights = lambda self, **buffers: None


def sum_plainly(trainer: Any) -> None:
    """Have FSDP sum, and scale afterwards, as over gloo."""
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


@contextlib.contextmanager
def _device_is_cpu() -> Iterator[None]:
    """TorchTitan settles on its device when it is imported; within this block it is the CPU."""
    internals: Any = importlib.import_module("torch._utils")
    found = internals._get_available_device_type, internals._get_device_module
    device_module = _CPUDeviceModule("torch.cpu with memory")
    internals._get_available_device_type = lambda: "cpu"
    internals._get_device_module = lambda name: device_module if name == "cpu" else found[1](name)
    try:
        yield
    finally:
        internals._get_available_device_type, internals._get_device_module = found


class _CPUDeviceModule(ModuleType):
    """``torch.cpu``, with what TorchTitan asks of a device: its memory is this process's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: object = None) -> str:
        return f"{platform.processor() or platform.machine()} CPU"

    def get_device_properties(self, device: object = None) -> SimpleNamespace:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return SimpleNamespace(name="cpu", total_memory=total)

    def current_device(self) -> int:
        return 0

    def memory_stats(self, device: object = None) -> dict[str, int]:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "active_bytes.all.peak": resident,
            "reserved_bytes.all.peak": peak,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def reset_peak_memory_stats(self) -> None:
        """The kernel keeps the peak of a process's whole life."""

    def empty_cache(self) -> None:
        """There is none."""


@contextlib.contextmanager
def _stand_in_for_triton() -> Iterator[None]:
    """The kernels' file finds a triton, if there is none; a kernel raises when it is called."""
    if find_spec("triton") is not None:
        yield
        return
    finder = _KernelsFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _KernelsFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _KERNELS:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _KernelsLoader(name, spec.origin)
        return spec


class _KernelsLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        stand_ins = _triton_modules()
        sys.modules.update(stand_ins)
        try:
            super().exec_module(module)
        finally:
            for name in stand_ins:
                del sys.modules[name]


def _triton_modules() -> Mapping[str, ModuleType]:
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit = _jit  # type: ignore[attr-defined]
    triton.language = language  # type: ignore[attr-defined]
    word = _TritonName()
    language.__getattr__ = lambda name: word  # type: ignore[method-assign]
    return {"triton": triton, "triton.language": language}


class _TritonName:
    """What the language of kernels has by any name, in their annotations and in tables."""

    def __call__(self, *args: object) -> _TritonName:
        return self


def _jit(function: Any = None, **options: Any) -> Any:
    return _jit if function is None else _Kernel(function)


class _Kernel:
    """The code that triton would have compiled; ``kernel[grid](...)`` would call it."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.name = function.__name__

    def __getitem__(self, grid: object) -> None:
        raise RuntimeError(f"the kernel {self.name} needs a GPU, and triton")
