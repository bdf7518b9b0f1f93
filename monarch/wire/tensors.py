"""torch tensors as pickles with buffers. torch itself is imported only when tensors arrive.

Tensors that share a storage still share it after they were sent in one message. Only the part of a
storage that these tensors use is sent, which is known when all of them have been pickled. So each
storage is pickled as a buffer that is cut out at the end, and as the number of a row in a table,
also a buffer, which says where the part begins.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from array import array
from typing import Any

_SMALL_BYTES = 4 * 1024
_ALIGNMENT = 64


class _Storage:
    """A storage that is being sent, and the range of its bytes that tensors use."""

    def __init__(self, storage: Any, table: _StorageTable | None, row: int) -> None:
        self.storage = storage
        self.low = storage.nbytes()
        self.high = 0
        self.buffer = pickle.PickleBuffer(bytearray())
        self._table = table
        self._row = row

    def use(self, low: int, high: int) -> None:
        self.low = min(self.low, low - low % _ALIGNMENT)
        self.high = max(self.high, high)

    def view(self) -> memoryview:
        size = max(0, self.high - self.low)
        memory = (ctypes.c_ubyte * size).from_address(self.storage.data_ptr() + self.low)
        return pickle.PickleBuffer(memory).raw()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._table is None:
            self.use(0, self.storage.nbytes())
            return _Arrived, (bytearray(self.view()), None, 0)
        return _Arrived, (self.buffer, self._table, self._row)


class _StorageTable:
    """Where the used part of each storage begins."""

    def __init__(self) -> None:
        self.storages: list[_Storage] = []
        self.buffer = pickle.PickleBuffer(bytearray())

    def view(self) -> memoryview:
        return memoryview(array("q", [storage.low for storage in self.storages])).cast("B")

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_table, (self.buffer,)


class TensorReducer:
    """Tells a pickler how to pickle the tensors of one message."""

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._table = _StorageTable()
        self._storages: dict[int, _Storage] = {}
        self._late: dict[int, _Storage | _StorageTable] = {}

    def reduce(self, value: Any) -> Any:
        """Return how to pickle ``value``; ``NotImplemented`` for values that torch or pickle
        handles.

        Raises ``TypeError`` for a tensor on a GPU.
        """
        torch = self._torch
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is torch.storage.TypedStorage:
            whole = self._whole(value._untyped_storage)
            return (
                NotImplemented if whole is None else (_rebuild_typed, (whole, _name(value.dtype)))
            )
        if kind is torch.UntypedStorage:
            whole = self._whole(value)
            return NotImplemented if whole is None else (_rebuild_untyped, (whole,))
        return NotImplemented

    def late(self, buffer: pickle.PickleBuffer) -> _Storage | _StorageTable | None:
        """Return the storage or table that ``buffer`` is a placeholder for; None for other buffers.

        Its contents are known only once everything is pickled.
        """
        return self._late.get(id(buffer))

    def end(self) -> None:
        """Break the reference cycle between the storages and their table, once everything is
        pickled.

        A cycle would keep the sender's memory until the garbage is collected.
        """
        self._table.storages.clear()

    def _tensor(self, tensor: Any) -> Any:
        if tensor.device.type == "cuda":
            raise TypeError(
                f"a tensor on {tensor.device} cannot travel in a message: send tensor.cpu(), and "
                "have the receiver move it to its own device"
            )
        is_plain = (
            tensor.device.type == "cpu"
            and tensor.layout is self._torch.strided
            and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
            and not (tensor.__dict__ or tensor._backward_hooks)
        )
        if not is_plain:
            return NotImplemented
        size, stride, item = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        low = tensor.storage_offset() * item
        high = low
        if tensor.numel():
            steps = zip(size, stride, strict=True)
            high = low + (sum((n - 1) * step for n, step in steps) + 1) * item
        storage = self._storage(tensor.untyped_storage())
        storage.use(low, high)
        dtype = _name(tensor.dtype)
        return _rebuild_tensor, (storage, dtype, low, size, stride, tensor.requires_grad)

    def _whole(self, storage: Any) -> _Storage | None:
        if storage.device.type != "cpu":
            return None
        sent = self._storage(storage)
        sent.use(0, storage.nbytes())
        return sent

    def _storage(self, storage: Any) -> _Storage:
        sent = self._storages.get(storage._cdata)
        if sent is None:
            is_small = storage.nbytes() < _SMALL_BYTES
            table = None if is_small else self._table
            sent = _Storage(storage, table, len(self._table.storages))
            self._storages[storage._cdata] = sent
            if not is_small:
                self._table.storages.append(sent)
                self._late[id(sent.buffer)] = sent
                self._late[id(self._table.buffer)] = self._table
        return sent


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class _Arrived:
    """A storage that was received: the part of it that was used."""

    def __init__(self, buffer: Any, table: Any, row: int) -> None:
        import torch

        self.start: int = 0 if table is None else table[row]
        if len(memoryview(buffer)) == 0:
            self.storage: Any = torch.UntypedStorage(0)
            return
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            tensor = torch.frombuffer(buffer, dtype=torch.uint8)
            if tensor.data_ptr() % 16:
                tensor = tensor.clone()  # As a frame, it may lie anywhere.
            self.storage = tensor.untyped_storage()


def _read_table(buffer: Any) -> array[int]:
    table = array("q")
    table.frombytes(buffer)
    return table


def _rebuild_tensor(
    arrived: _Arrived,
    dtype: str,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # It is a tensor of this process, whatever mesh is active.
        tensor = torch.empty(0, dtype=getattr(torch, dtype))
        start = (offset - arrived.start) // tensor.element_size()
        tensor.set_(arrived.storage, start, size, stride)
        return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_typed(arrived: _Arrived, dtype: str) -> Any:
    import torch

    return torch.storage.TypedStorage(
        wrap_storage=arrived.storage, dtype=getattr(torch, dtype), _internal=True
    )


def _rebuild_untyped(arrived: _Arrived) -> Any:
    return arrived.storage
