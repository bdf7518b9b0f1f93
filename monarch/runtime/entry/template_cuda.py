"""Keeps CUDA out of templates: a process that has called the driver cannot be forked.

Libraries ask about the GPU while they are imported (TorchTitan for its capability). A template
answers them from NVML, which survives a fork. Questions that NVML cannot answer still go to CUDA,
and the template notices that it is spoiled. For ROCm and XPU, only that is noticed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"  # has torch count GPUs by NVML
# Devices that the drivers of ROCm and XPU open when they begin to compute. NVIDIA's are no sign:
# NVML opens the same ones as CUDA.
_COMPUTE_DEVICES = ("/dev/kfd", "/dev/dri/render")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED


class TemplateCuda:
    """Answers torch's questions about GPUs without CUDA, while a template imports modules.

    A fork of a process that has used CUDA cannot use the GPU. ``cause`` is the module whose import
    used CUDA all the same; "" if none is known.
    """

    def __init__(self) -> None:
        self.cause = ""
        self._is_importing = False
        self._real: dict[str, Any] = {}
        self._cuda: ModuleType | None = None

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        value_before = os.environ.get(_NVML_CHECK)
        os.environ[_NVML_CHECK] = "1"
        waiting = _AfterImport("torch", self._stand_in)
        self._is_importing = True
        if "torch" in sys.modules:
            self._stand_in(sys.modules["torch"])
        else:
            sys.meta_path.insert(0, waiting)
        try:
            yield
        finally:
            self._is_importing = False
            if waiting in sys.meta_path:
                sys.meta_path.remove(waiting)
            for name, function in self._real.items():
                setattr(self._cuda, name, function)
            self._real.clear()
            if value_before is None:
                os.environ.pop(_NVML_CHECK, None)
            else:
                os.environ[_NVML_CHECK] = value_before

    def _stand_in(self, torch: ModuleType) -> None:
        """Replace the functions of ``torch.cuda`` that its other functions depend on.

        A module may import a replacement by name and keep it: it then calls the real function.
        """
        if torch.version.cuda is None:
            return
        self._cuda = cuda = torch.cuda
        for name, make in (
            ("_lazy_init", self._noted),
            ("current_device", self._first_device),
            ("get_device_properties", self._properties),
        ):
            self._real[name] = getattr(cuda, name)
            setattr(cuda, name, make(self._real[name]))

    def _noted(self, real: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(real)
        def lazy_init() -> None:
            if self._is_importing and not self.cause:
                self.cause = _importing_module(sys._getframe(1))
            real()

        return lazy_init

    def _first_device(self, real: Callable[[], int]) -> Callable[[], int]:
        @functools.wraps(real)
        def current_device() -> int:
            return 0 if self._is_importing else real()

        return current_device

    def _properties(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def get_device_properties(device: Any = None) -> Any:
            if not self._is_importing:
                return real(device)
            try:
                return _NvmlProperties(self._cuda, device, real)
            except Exception:
                return real(device)  # without NVML, or of a part of a GPU (MIG)

        return get_device_properties


class _NvmlProperties:
    """The properties of a GPU, as ``torch.cuda.get_device_properties``: from NVML if it has them,
    else from CUDA."""

    def __init__(self, cuda: Any, device: Any, real: Callable[..., Any]) -> None:
        pynvml = cuda.pynvml
        handle = cuda._get_pynvml_handler(device)
        self._ask_cuda = functools.partial(real, device)
        self.major, self.minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = pynvml.nvmlDeviceGetName(handle)
        self.name = name.decode() if isinstance(name, bytes) else name
        self.total_memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask_cuda(), name)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``done`` with a module as soon as it is imported."""

    def __init__(self, name: str, done: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._done = done

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._done(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def is_spoiled() -> bool:
    """Return whether a fork of this process could not use the GPU.

    The drivers are asked first, as not only torch calls them. Torch refuses to use the GPU in the
    fork of a process in which it called CUDA; it knows that only in a fork, so one is made.
    """
    if _has_cuda_begun() or _has_compute_device_open():
        return True
    torch: Any = sys.modules.get("torch")
    if torch is None or (torch.version.cuda is None and torch.version.hip is None):
        return False
    is_bad = torch.cuda._is_in_bad_fork
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(bool(is_bad()))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _has_cuda_begun() -> bool:
    """Return whether this process has initialized the CUDA driver. The question loads nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False  # The driver is not loaded.
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _has_compute_device_open() -> bool:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(_COMPUTE_DEVICES):
                return True
        except OSError:
            continue  # it was the listing's own
    return False


def _importing_module(frame: FrameType | None) -> str:
    """Return the module, other than torch's own, whose import led to a call; "" if none did."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>" and name.partition(".")[0] != "torch":
            return name
        frame = frame.f_back
    return ""
