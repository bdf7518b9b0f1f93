"""Memory of this process that may be read or written: its address, layout and owner.

It may be of tensors, and of objects with Python's buffer protocol: ``memoryview``, ``bytearray``,
numpy's arrays.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch.rdma.memory.gpu import GpuMark, gpu
from monarch.rdma.memory.layout import Layout, Run, RunReader, at, layout_of


class LocalMemory(NamedTuple):
    """The address and layout of some memory of this process.

    While ``keep`` exists, the memory stays in its place; ``root`` is the object whose end frees it.
    ``device`` is torch's name of the device; on a GPU, copies wait for the marks of ``ready``.
    """

    address: int
    layout: Layout
    is_readonly: bool
    keep: object
    root: object
    device: str = "cpu"
    ready: tuple[GpuMark, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def runs(self, start: int = 0, stop: int | None = None) -> list[Run]:
        """Return the addresses and lengths of the bytes ``start`` to ``stop``."""
        return list(at(self.address, self.layout.runs(start, stop)))

    def as_of_now(self) -> LocalMemory:
        """Return the memory with a mark, so that copies wait for the GPU work that this thread has
        queued."""
        if self.device == "cpu":
            return self
        return self._replace(ready=(gpu().mark(gpu().device_of(self.keep)),))


def copy_runs(source: Sequence[Run], target: Sequence[Run]) -> None:
    """Copy host memory from runs to runs."""
    uncopied = RunReader(source)
    for address, size in target:
        for start, length in uncopied.take(size):
            ctypes.memmove(address, start, length)
            address += length


def memory_of(data: Any) -> LocalMemory:
    """Describe the memory of a tensor or a buffer. Raises ``TypeError`` for other objects."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(data)
    if hasattr(data, "__cuda_array_interface__"):
        array = gpu().describe(data)
        return LocalMemory(
            address=array.address,
            layout=array.layout,
            is_readonly=array.is_readonly,
            keep=array.storage,
            root=array.storage,
            device=array.device,
        )
    try:
        view = data if type(data) is memoryview else memoryview(data)
    except TypeError:
        kind = type(data).__name__
        raise TypeError(f"a tensor or a memoryview is needed here, not {kind}") from None
    return _of_view(view)


def _of_tensor(tensor: Any) -> LocalMemory:
    if tensor.layout != sys.modules["torch"].strided:
        raise TypeError(
            f"a tensor of layout {tensor.layout} has no one place in memory: use its parts "
            "(values(), indices()), or to_dense()"
        )
    tensor = tensor.detach()
    size = tensor.element_size()
    layout = layout_of(tensor.shape, [stride * size for stride in tensor.stride()], size)
    if 0 in tensor.shape:
        layout = Layout(0)
    address, storage, device = gpu().tensor_at(tensor)
    if layout.nbytes and not address:
        kind = type(tensor).__name__
        raise TypeError(
            f"a {kind} on {tensor.device} has no memory of its own here: give an ordinary "
            "tensor of this process"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "this tensor's values are not what lies in memory: use its resolve_conj() or "
            "resolve_neg()"
        )
    return LocalMemory(
        address=address,
        layout=layout,
        is_readonly=False,
        keep=storage,
        root=storage,
        device=device,
    )


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_STRIDED_READ_ONLY = 0x10 | 0x08  # PyBUF_STRIDES


def _address_of(view: memoryview) -> int:
    """Return the address of a view's memory, which ``ctypes`` does not give if it is read-only.

    Raises ``TypeError`` if the memory has no address.
    """
    buffer = _PyBuffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    if get(ctypes.py_object(view), ctypes.byref(buffer), _STRIDED_READ_ONLY) != 0:
        raise TypeError(
            "this memoryview has no address: give one of a bytearray, an array or a mapping"
        )
    try:
        return buffer.buf or 0
    finally:
        release(ctypes.byref(buffer))


def _of_view(view: memoryview) -> LocalMemory:
    shape, strides = view.shape or (), view.strides or ()
    layout = Layout(0) if 0 in shape else layout_of(shape, strides, view.itemsize)
    return LocalMemory(_address_of(view), layout, view.readonly, view, _root_of(view.obj))


def _root_of(owner: Any) -> object:
    """Return the object that owns the memory which an array, or another object, views."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        while isinstance(owner, numpy.ndarray) and owner.base is not None:
            owner = owner.base
    if torch is not None and isinstance(owner, torch.Tensor):
        return owner.untyped_storage()
    return owner


class Life:
    """Notices when nothing in this process refers to some memory any longer.

    For tensors and numpy's arrays, ``freed`` is called before the memory is freed. Other memory is
    kept, so that it can neither move nor be freed, until ``has_ended`` finds no other reference.
    """

    def __init__(self, memory: LocalMemory, freed: Callable[[], None]) -> None:
        #: A view that keeps the memory in its place, for memory that does not say when it is freed.
        self._view: Any = None
        #: The finalizer of memory that says so.
        self._watch: Any = None
        if memory.device != "cpu" or _says_when_it_ends(memory.root):
            self._watch = weakref.finalize(memory.root, freed)
            self._watch.atexit = False
        else:
            # A second view: `keep` may share its buffer with the user's view.
            self._view = _view_of_its_own(memory.root, memory.keep)

    def has_ended(self) -> bool:
        """Return whether nothing but this object refers to the memory.

        It is False for a tensor's memory, of whose end ``freed`` tells.
        """
        if not isinstance(self._view, memoryview):
            return False
        root = self._view.obj
        # The view's reference, the local name, and the argument.
        return sys.getrefcount(root) <= 3

    def hold(self) -> object:
        """Return an object that keeps the memory in its place; ``None`` if it is freed."""
        if self._view is not None:
            return self._view
        alive = self._watch.peek() if self._watch is not None else None
        return alive[0] if alive else None

    def end(self) -> None:
        if self._watch is not None:
            self._watch.detach()
        self._watch = self._view = None


def _view_of_its_own(root: Any, keep: Any) -> object:
    if root is None:
        return keep
    try:
        return memoryview(root)
    except TypeError:  # The root has no buffer of its own: an array made by it does.
        return memoryview(keep)


def _says_when_it_ends(root: object) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(root, torch.UntypedStorage):
        return True
    # numpy does not resize an array that has weak references, so that its memory stays in place.
    return numpy is not None and isinstance(root, numpy.ndarray)
