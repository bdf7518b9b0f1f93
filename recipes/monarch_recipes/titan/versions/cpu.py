"""Lets TorchTitan run on a machine without a GPU, without changing its files.

TorchTitan needs three things that a CPU build of torch lacks: a device module that counts memory,
the package ``triton``, and a backend that can scale while it reduces. With a GPU or another
accelerator, ``import_torchtitan`` changes nothing, and NCCL is used. Otherwise each of the three is
replaced where TorchTitan uses it, and nowhere else: torch itself still finds no triton.
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


def import_torchtitan() -> None:
    """Import TorchTitan's trainer. Without an accelerator, let it train on the CPU.

    Call it before anything else in a program imports ``torchtitan``. Further calls do nothing.
    """
    if "torchtitan.train" in sys.modules:
        return
    if torch.accelerator.is_available():
        with quiet_imports():
            importlib.import_module("torchtitan.train")
        return
    with quiet_imports(), _device_is_cpu(), _stand_in_for_triton():
        train = importlib.import_module("torchtitan.train")
    utils = sys.modules["torchtitan.tools.utils"]
    # TorchTitan would run lspci, and then assume an A100. The speed of a CPU is not known.
    utils.get_peak_flops = lambda device_name: float("inf")  # type: ignore[attr-defined]
    train.Trainer.__init__ = _summing(train.Trainer.__init__)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Hide messages below warnings within the block, such as those of imported libraries."""
    root = logging.getLogger()
    old_level = root.level
    root.setLevel(max(old_level, logging.WARNING))
    try:
        yield
    finally:
        root.setLevel(old_level)


def _summing(init: Any) -> Any:
    """Return a trainer's `__init__`, wrapped so that FSDP sums without scaling.

    Gloo cannot scale the sum.
    """

    @functools.wraps(init)
    def wrapped(trainer: Any, *args: Any, **kwargs: Any) -> None:
        init(trainer, *args, **kwargs)
        sum_plainly(trainer)

    return wrapped


def take_storage_away(model_class: type[Any]) -> None:
    """From now on, let trainers keep tensors without storage, and models without initial values.

    This cannot be undone, so call it in a process that ends with its trainer.
    """
    torch.nn.Module.to_empty = lambda self, **device: self
    model_class.init_weights = lambda self, **buffers: None


def sum_plainly(trainer: Any) -> None:
    """Let FSDP add up gradients first and scale them afterwards, as gloo needs it."""
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


@contextlib.contextmanager
def _device_is_cpu() -> Iterator[None]:
    """Make TorchTitan take the CPU as its device, if it is imported within the block."""
    internals: Any = importlib.import_module("torch._utils")
    originals = internals._get_available_device_type, internals._get_device_module
    device_module = _CPUDeviceModule("torch.cpu with memory")
    internals._get_available_device_type = lambda: "cpu"
    internals._get_device_module = lambda name: (
        device_module if name == "cpu" else originals[1](name)
    )
    try:
        yield
    finally:
        internals._get_available_device_type, internals._get_device_module = originals


class _CPUDeviceModule(ModuleType):
    """``torch.cpu`` with the further functions that TorchTitan calls; memory is this process's."""

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
        """Do nothing: the kernel keeps the peak of a process's whole life."""

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""


@contextlib.contextmanager
def _stand_in_for_triton() -> Iterator[None]:
    """Provide a fake triton to TorchTitan's kernel files if there is none.

    Its kernels raise errors.
    """
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
    """Any name of triton's language, for annotations and tables in kernel files."""

    def __call__(self, *args: object) -> _TritonName:
        return self


def _jit(function: Any = None, **options: Any) -> Any:
    return _jit if function is None else _Kernel(function)


class _Kernel:
    """A function that triton would have compiled.

    Calling it as ``kernel[grid](...)`` raises an error.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.name = function.__name__

    def __getitem__(self, grid: object) -> None:
        raise RuntimeError(f"the kernel {self.name} needs a GPU, and triton")
