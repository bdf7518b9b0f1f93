"""Copies of tensors and arrays, and recorded facts of those that are only watched.

A tensor is restored as the same object, in the same memory, so that its views and other names see
the same. A watched tensor must not change, as it cannot be restored. Torch counts writes into a
tensor, but not those through ``.data``, a numpy array, or a collective; so a sample of the values
is compared, and all values if that is cheap compared to a call.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from monarch.runs.hold.copy_beside import SPOILT, CopyBeside
from monarch.runs.hold.copy_room import ROOM, available_bytes
from monarch.runs.hold.packed_state import is_dense

Undo = Callable[[], object]

_SMALL_BYTES = 64 * 1024
_LARGE_BYTES = 64 * 1024 * 1024
_NUM_SAMPLED = 64  # values of each tensor
# All values are compared if that takes less than this share of a call, at these speeds.
_SHARE_OF_CALL = 0.01
_BYTES_A_SECOND = {"cpu": 2e9, "cuda": 200e9}
_SECONDS_EACH = 1e-5
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Changed(Exception):
    """Something that was only watched has changed, and cannot be restored."""


class Copies:
    """Copies all tensors and arrays that a walk meets.

    ``undos`` restore their values. Before that, ``checks`` run: a check raises ``Changed`` if a
    tensor has changed that could not be copied, because there was no room.
    """

    def __init__(self) -> None:
        self.undos: list[Undo] = []
        self.checks: list[Undo] = []
        #: Whether only samples of some tensors are compared.
        self.is_sampled = False
        #: Copies of values; two views of the same values need one copy.
        self._by_memory: dict[Any, Any] = {}

    def check(self, is_good: Callable[[], bool], reason: str) -> None:
        """Add a check, which raises ``Changed`` with this reason unless ``is_good()``."""

        def check() -> None:
            if not is_good():
                raise Changed(reason)

        self.checks.append(check)

    def tensor(self, tensor: Any) -> Iterable[Any]:
        """Record a tensor; return its inner tensors, for the walk to follow; () if it has none."""
        torch: Any = sys.modules["torch"]
        inner = _inner(tensor)
        if inner:
            self._keep_made_of(tensor)
            return [*inner, *(self._gradient_made_of(tensor) if tensor.is_leaf else ())]
        if tensor.is_meta:
            return ()
        if torch.nn.parameter.is_lazy(tensor):
            kind = type(tensor)
            self.undos.append(lambda: _make_lazy_again(torch, tensor, kind))
            return ()
        self._copy_values(torch, tensor)
        if tensor.is_leaf:
            self._keep_flag_and_gradient(torch, tensor)
        return ()

    def _keep_made_of(self, tensor: Any) -> None:
        """Record a tensor's inner tensors, which may be replaced, as FSDP does before its first
        step."""
        inner = {name: getattr(tensor, name) for name in _inner_names(tensor)}

        def put_back() -> None:
            for name, part in inner.items():
                if getattr(tensor, name) is not part:
                    setattr(tensor, name, part)

        self.undos.append(put_back)

    def _gradient_made_of(self, tensor: Any) -> Iterable[Any]:
        """Return the gradient of a tensor, for the walk to follow; () if it has none. Used for a
        gradient that consists of other tensors.

        The gradient is kept alive, so that it can be put back.
        """
        gradient = tensor.grad
        self._put_gradient_back(tensor, lambda: gradient)
        return () if gradient is None else (gradient,)

    def _put_gradient_back(self, tensor: Any, gradient: Callable[[], Any]) -> None:
        needs_gradient = tensor.requires_grad

        def put_back() -> None:
            if tensor.requires_grad != needs_gradient:
                tensor.requires_grad_(needs_gradient)
            if tensor.grad is not gradient():
                tensor.grad = gradient()

        self.undos.append(put_back)

    def _copy_values(self, torch: Any, tensor: Any) -> None:
        if tensor.layout is not torch.strided:
            value = tensor.detach().clone()
            self.undos.append(lambda: _write(torch, tensor, value))
            return
        memory = tensor.detach()
        values = _each_once(memory)
        key = (_layout(values), values.dtype, values.device, values.is_conj(), values.is_neg())
        copied = self._by_memory.get(key) if values.numel() else None
        if copied is None:
            copied = self._by_memory[key] = _copied(torch, values)
        if copied is _NO_ROOM:
            kept_sum = _sum_of(torch, values)
            self.check(
                lambda: bool(torch.equal(_sum_of(torch, values), kept_sum)),
                "a large tensor has changed",
            )

        def put_back() -> None:
            if copied is not _NO_ROOM and not _same_bits(torch, values, copied):
                _write(torch, values, copied)
            if _layout(tensor) != _layout(memory) or tensor.dtype != memory.dtype:
                tensor.data = memory  # It was given other memory.

        self.undos.append(put_back)

    def _keep_flag_and_gradient(self, torch: Any, tensor: Any) -> None:
        """Record whether a tensor needs a gradient, and copy the values of its gradient.

        The gradient itself is not kept alive, because a step frees it, and so the memory would be
        needed twice. If nobody else refers to the gradient, a new tensor with the same values does
        as well.
        """
        needs_gradient, gradient = tensor.requires_grad, tensor.grad
        copied = None if gradient is None else _copied(torch, gradient.detach())
        gradient_ref = None if gradient is None else weakref.ref(gradient)
        device = tensor.device

        def put_back() -> None:
            if tensor.requires_grad != needs_gradient:
                tensor.requires_grad_(needs_gradient)
            if copied is None or gradient_ref is None:
                tensor.grad = None
                return
            gradient = gradient_ref()
            if gradient is None or gradient.shape != copied.shape:
                gradient = copied.to(device, copy=True)
            elif not _same_bits(torch, gradient, copied):
                _write(torch, gradient, copied)
            if tensor.grad is not gradient:
                tensor.grad = gradient

        if copied is _NO_ROOM:
            raise MemoryError("there is no room for a copy of the gradients")
        self.undos.append(put_back)

    def array(self, array: Any) -> None:
        """Copy an array's values, to restore them. Leave out read-only and memory-mapped arrays."""
        numpy: Any = sys.modules["numpy"]
        if isinstance(array, numpy.memmap) or not array.flags.writeable:
            return  # A file cannot be restored; of a read-only view the base is copied.
        plain = array.view(numpy.ndarray)
        shape, copied = array.shape, plain.copy()

        def put_back() -> None:
            if array.shape != shape:
                if array.size != copied.size:
                    array.resize(shape, refcheck=False)
                else:
                    array.shape = shape
            array.view(numpy.ndarray)[...] = copied

        self.undos.append(put_back)

    def optimizer(self, optimizer: Any) -> None:
        """Called for each optimizer, before its tensors are met. This class does nothing here,
        because the walk copies the tensors.
        """

    def told(self, value: Any) -> Undo:
        """Copy the ``state_dict`` of an object; the returned function loads it."""
        state = copy.deepcopy(value.state_dict())
        # A copy each time, as some objects keep the state that they load.
        return lambda: value.load_state_dict(copy.deepcopy(state))


class LaterCopies(Copies):
    """Copies everything at once, except the optimizers' tensors, which a ``CopyBeside`` copies.

    Without a ``CopyBeside``, for example if there is no room, the optimizers' tensors are copied at
    once too.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Plain tensors that the walk has met, with their layouts.
        self._met: list[tuple[Any, Any]] = []
        #: The optimizers' tensors, by layout.
        self._parameters: dict[Any, Any] = {}
        self._moments: dict[Any, Any] = {}
        #: Whether the tensors that are copied later have not changed; set by the check.
        self._is_unchanged = False

    def tensor(self, tensor: Any) -> Iterable[Any]:
        if _is_plain(tensor):
            self._met.append((tensor, _layout(tensor)))
            return ()
        return super().tensor(tensor)

    def optimizer(self, optimizer: Any) -> None:
        parameters, moments = tensors_of(optimizer)
        for tensors, by_layout in ((parameters, self._parameters), (moments, self._moments)):
            for tensor in tensors:
                by_layout.setdefault(_layout(tensor), tensor.detach())

    def held(self) -> list[Any]:
        """Return the optimizers' tensors among all that were met, parameters first."""
        return list(self._held().values())

    def _held(self) -> dict[Any, Any]:
        """Return the optimizers' tensors among all tensors that were met, by layout."""
        met = {layout for _, layout in self._met}
        of_optimizers = {**self._parameters, **self._moments}
        return {layout: of_optimizers[layout] for layout in of_optimizers if layout in met}

    def finish(self, copy: CopyBeside | None) -> None:
        """Copy the values of all tensors that ``copy`` does not copy. ``copy`` was begun with the
        tensors ``held``; None: there is no such copy.
        """
        numbers: dict[Any, int] = {}
        if copy is not None:
            numbers = dict(zip(self._held(), copy.later, strict=True))
        met, self._met = self._met, []
        later = []
        for tensor, layout in met:
            number = numbers.get(layout)
            if number is None:
                super().tensor(tensor)
            else:
                later.append((tensor, number, layout))
        if copy is None or not later:
            return
        torch: Any = sys.modules["torch"]
        sampled = {
            number: tensor.detach() for tensor, number, _ in later if not copy.has_sum(number)
        }
        self.is_sampled = any(tensor.numel() > _NUM_SAMPLED for tensor in sampled.values())
        samples = _samples_of(torch, sampled.values())

        def check() -> None:
            self._is_unchanged = copy.is_untouched and _all_equal(
                torch, samples, _samples_of(torch, sampled.values())
            )
            if self._is_unchanged:
                return
            if error := copy.wrong():
                raise Changed(error)
            if not _all_equal(torch, samples, _samples_of(torch, map(copy.tensor, sampled))):
                copy.spoil()
                raise Changed(SPOILT)

        self.checks.append(check)
        for tensor, number, layout in later:
            self._put_back_from(torch, copy, tensor, number, layout)
            if tensor.is_leaf:
                self._keep_flag_and_gradient(torch, tensor)

    def _put_back_from(
        self, torch: Any, copy: CopyBeside, tensor: Any, number: int, layout: Any
    ) -> None:
        memory = tensor.detach()

        def put_back() -> None:
            if not self._is_unchanged:
                copied = copy.tensor(number)
                if not _same_bits(torch, memory, copied):
                    _write(torch, memory, copied)
            if _layout(tensor) != layout or tensor.dtype != memory.dtype:
                tensor.data = memory  # It was given other memory.

        self.undos.append(put_back)


def tensors_of(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return an optimizer's parameters, and those tensors of its state that are dense
    (``is_dense``). Of compound tensors, the inner tensors are returned.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = [
        value
        for entries in optimizer.state.values()
        for value in (entries.values() if isinstance(entries, dict) else ())
    ]
    return list(_plain_within(parameters)), list(_plain_within(moments))


def _plain_within(values: Iterable[Any]) -> Iterator[Any]:
    torch: Any = sys.modules["torch"]
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        if inner := _inner(value):
            yield from _plain_within(inner)
        elif _is_plain(value) and value.numel() and is_dense(value):
            yield value


def _is_plain(tensor: Any) -> bool:
    torch: Any = sys.modules["torch"]
    is_own_kind = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_own_kind and tensor.layout is torch.strided and not tensor.is_meta


def _samples_of(torch: Any, tensors: Iterable[Any]) -> dict[Any, Any]:
    """Return some values of each tensor, by type, on the CPU."""
    views: dict[Any, list[Any]] = {}
    for tensor in tensors:
        views.setdefault((tensor.dtype, tensor.device), []).append(_sampled(tensor))
    return {dtype: values.cpu() for (dtype, _), values in _joined(torch, views).items()}


class Notes(Copies):
    """Copies small state, and records facts about the rest that reveal changes.

    ``samples`` come from the last call, so that each call need not choose them again;
    ``call_seconds`` is how long a call takes.
    """

    def __init__(self, samples: ValueSamples, call_seconds: float) -> None:
        super().__init__()
        self._samples = samples
        self._call_seconds = call_seconds
        #: Ids of the optimizers' state tensors.
        self._of_optimizers: set[int] = set()
        #: Plain tensors that the walk has met.
        self._met: list[Any] = []
        #: The types of plain tensors.
        self._plain: tuple[Any, ...] = ()
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            self._plain = torch.Tensor, torch.nn.Parameter
        _count_optimizer_steps()
        num_steps = _num_optimizer_steps[0]
        # Some optimizers write to weights in ways that torch does not count.
        self.check(lambda: _num_optimizer_steps[0] == num_steps, "an optimizer has made a step")

    def tensor(self, tensor: Any) -> Iterable[Any]:
        if type(tensor) in self._plain:
            self._met.append(tensor)  # All at once costs a fraction of one by one.
            return ()
        if _inner(tensor):
            return super().tensor(tensor)
        if sys.modules["torch"].nn.parameter.is_lazy(tensor) or tensor.nbytes <= _SMALL_BYTES:
            return super().tensor(tensor)
        self.check(lambda: False, f"a {type(tensor).__name__} may have changed")
        return ()

    def _gradient_made_of(self, tensor: Any) -> Iterable[Any]:
        """Return the gradient of a tensor; it is not kept alive and must not change."""
        gradient = tensor.grad
        if gradient is None:
            self._put_gradient_back(tensor, lambda: None)
            return ()
        gradient_ref = weakref.ref(gradient)
        versions = [inner._version for inner in _inner(gradient)]

        def is_unchanged() -> bool:
            current = tensor.grad
            return (
                current is not None
                and current is gradient_ref()
                and [inner._version for inner in _inner(current)] == versions
            )

        self._put_gradient_back(tensor, gradient_ref)
        self.check(is_unchanged, "gradients have changed")
        return ()

    def finish(self) -> None:
        """Copy small tensors that were met, and record facts that reveal changes of the others."""
        torch: Any = sys.modules.get("torch")
        of_optimizers, noted = self._of_optimizers, []
        for tensor in self._met:
            if tensor.layout is not torch.strided:
                super().tensor(tensor)  # It has no memory of its own to compare.
            elif (
                tensor.nbytes <= _SMALL_BYTES
                and not tensor.requires_grad
                and id(tensor) not in of_optimizers
            ):
                super().tensor(tensor)
            else:
                noted.append(tensor)
        self._met = []
        if not noted:
            return
        gradients = self._note_gradients(noted)
        noted += gradients
        refs = [weakref.ref(tensor) for tensor in noted]
        versions = [tensor._version for tensor in noted]
        pointers = [tensor.data_ptr() for tensor in noted]
        samples = self._samples.of(torch, noted, pointers)
        views = self._samples.views

        def is_unchanged() -> bool:
            # If a tensor is gone, its holder shows what replaced it.
            return all(
                tensor is None or (tensor._version == version and tensor.data_ptr() == pointer)
                for ref, version, pointer in zip(refs, versions, pointers, strict=True)
                for tensor in (ref(),)
            ) and _all_equal(torch, samples, _joined(torch, views))

        reason = "weights, or what the optimizer knows, have changed already"
        self.check(is_unchanged, reason)
        seconds = len(noted) * _SECONDS_EACH
        if seconds < _SHARE_OF_CALL * self._call_seconds:
            for tensor in noted:
                seconds += tensor.nbytes / _BYTES_A_SECOND.get(tensor.device.type, 2e9)
        if seconds >= _SHARE_OF_CALL * self._call_seconds:
            self.is_sampled = any(tensor.numel() > _NUM_SAMPLED for tensor in noted)
        else:
            sums = [_sum_of(torch, tensor.detach()) for tensor in noted]

            def are_sums_equal() -> bool:
                return all(
                    tensor is None or torch.equal(kept_sum, _sum_of(torch, tensor.detach()))
                    for kept_sum, ref in zip(sums, refs, strict=True)
                    for tensor in (ref(),)
                )

            self.check(are_sums_equal, reason)

    def _note_gradients(self, tensors: list[Any]) -> list[Any]:
        """Record which of the ``tensors`` have a gradient, to restore that. Return the gradients
        whose values must not change.
        """
        leaves = [tensor for tensor in tensors if tensor.is_leaf]
        flags = [tensor.requires_grad for tensor in leaves]
        gradients = [tensor.grad for tensor in leaves]
        existing = [gradient for gradient in gradients if gradient is not None]
        if any(gradient.layout is not sys.modules["torch"].strided for gradient in existing):
            self.check(lambda: False, "sparse gradients may have changed")
            return []
        if sum(gradient.nbytes for gradient in existing) > _LARGE_BYTES:
            # A step usually frees them first, so references to them must not keep them alive.
            refs = [(leaf, weakref.ref(leaf.grad)) for leaf in leaves if leaf.grad is not None]
            self.check(
                lambda: all(leaf.grad is ref() is not None for leaf, ref in refs),
                "gradients have changed",
            )
            leaves = [leaf for leaf in leaves if leaf.grad is None]
            flags = [tensor.requires_grad for tensor in leaves]
            gradients = [None] * len(leaves)

        def put_back() -> None:
            for tensor, flag, gradient in zip(leaves, flags, gradients, strict=True):
                if tensor.requires_grad != flag:
                    tensor.requires_grad_(flag)
                if tensor.grad is not gradient:
                    tensor.grad = gradient

        self.undos.append(put_back)
        return existing

    def array(self, array: Any) -> None:
        numpy: Any = sys.modules["numpy"]
        if array.nbytes <= _SMALL_BYTES:
            super().array(array)
        elif not isinstance(array, numpy.memmap) and array.flags.writeable:
            # Nothing counts the writes into an array.
            if array.dtype.hasobject:
                self.check(lambda: False, "a large array of objects may have changed")
                return
            facts_of = _array_sum
            if array.nbytes / 2e9 >= _SHARE_OF_CALL * self._call_seconds:
                facts_of, self.is_sampled = _array_samples, True
            facts = facts_of(numpy, array)
            self.check(lambda: facts_of(numpy, array) == facts, "a large array has changed already")

    def optimizer(self, optimizer: Any) -> None:
        torch: Any = sys.modules["torch"]
        for entries in optimizer.state.values():
            for value in entries.values() if isinstance(entries, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._of_optimizers.add(id(value))

    def told(self, value: Any) -> Undo:
        if _num_bytes(value.state_dict()) <= _LARGE_BYTES // 64:
            return super().told(value)
        self.check(lambda: False, f"a {type(value).__name__} may have changed")
        return lambda: None


class ValueSamples:
    """A few values of each of many tensors, read together."""

    def __init__(self) -> None:
        #: Views of the sampled values, by type and device; they keep the memory alive.
        self.views: dict[Any, list[Any]] = {}
        #: The ids and addresses of the tensors that the views are of.
        self._tensors: tuple[list[int], list[int]] = [], []

    def of(self, torch: Any, tensors: list[Any], pointers: list[int]) -> dict[Any, Any]:
        """Return some values of each tensor, by the type of the tensors. ``pointers`` are the
        addresses of the tensors' memory.
        """
        ids = [id(tensor) for tensor in tensors]
        if (ids, pointers) != self._tensors:
            self.views, self._tensors = {}, (ids, pointers)
            for tensor in tensors:
                view = _sampled(tensor.detach())
                self.views.setdefault((view.dtype, view.device), []).append(view)
        return _joined(torch, self.views)


def _joined(torch: Any, views: dict[Any, list[Any]]) -> dict[Any, Any]:
    with torch.no_grad():
        return {kind: torch.cat(parts) for kind, parts in views.items()}


def _sampled(memory: Any) -> Any:
    """Return some of the values in ``memory``. They are adjacent values if possible, because these
    are read much faster.
    """
    number = memory.numel()
    span = 1 + sum(
        (n - 1) * stride for n, stride in zip(memory.shape, memory.stride(), strict=True)
    )
    if number and span == number:  # The order of its dimensions does not matter.
        count = min(number, _NUM_SAMPLED)
        start = min(number * 5 // 8, number - count) if number > 2 * _NUM_SAMPLED else 0
        return memory.as_strided((count,), (1,), memory.storage_offset() + start)
    steps = round((number / _NUM_SAMPLED) ** (1 / max(1, memory.dim()))) or 1
    lattice = (slice(None, None, steps),) * memory.dim()
    return memory[lattice].reshape(-1) if number else memory.reshape(-1)


def _all_equal(torch: Any, first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    return first.keys() == second.keys() and all(
        _same_bits(torch, first[kind], second[kind]) for kind in first
    )


def _sum_of(torch: Any, memory: Any) -> Any:
    """Return a sum of the bits, as a tensor on the same device."""
    with torch.no_grad():
        bits = _bits_of(torch, _each_once(memory))
        if bits.dtype in (torch.int32, torch.int16) and bits.is_contiguous():
            bits = bits.view(-1)
            wide = 8 // bits.element_size()
            start = bits.storage_offset() * bits.element_size()
            if start % 8 == 0 and bits.numel() >= wide:  # Sums of 8 bytes need no conversion.
                even = bits.numel() // wide * wide
                head = bits[:even].view(torch.int64).sum()
                return head + bits[even:].sum(dtype=torch.int64)
        return bits.sum(dtype=torch.int64)


def _array_sum(numpy: Any, array: Any) -> Any:
    plain = array.view(numpy.ndarray)
    if plain.flags.c_contiguous and plain.nbytes % 8 == 0:
        return plain.reshape(-1).view(numpy.uint64).sum()
    return plain.tobytes()


def _array_samples(numpy: Any, array: Any) -> bytes:
    """Return the bytes of some values, spread over the array."""
    count = min(array.size, _NUM_SAMPLED)
    positions = numpy.linspace(0, array.size - 1, count).astype(numpy.int64)
    return bytes(array.flat[positions].tobytes())


def _bits_of(torch: Any, values: Any) -> Any:
    """Return the values as integers. Two integers are equal if all bits of the two values are
    equal.
    """
    if values.is_conj() or values.is_neg():
        values = values.resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.is_quantized:
        return values.int_repr()  # A view of a quantized tensor would end the process.
    if values.dtype is torch.bool:
        return values.view(torch.uint8)
    return values.view(getattr(torch, _INTEGERS[values.element_size()]))


def _same_bits(torch: Any, first: Any, second: Any) -> bool:
    """Whether all bits are equal; False also if the two cannot be compared, as on two devices."""
    if first.shape != second.shape or first.device != second.device or first.dtype != second.dtype:
        return False
    try:
        with torch.no_grad():
            return bool(torch.equal(_bits_of(torch, first), _bits_of(torch, second)))
    except (RuntimeError, KeyError):
        return False


def _write(torch: Any, tensor: Any, value: Any) -> None:
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(value)


def _inner(tensor: Any) -> list[Any]:
    """Return the inner tensors of a tensor without its own memory, such as a DTensor."""
    return [getattr(tensor, name) for name in _inner_names(tensor)]


def _inner_names(tensor: Any) -> list[str]:
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    return [] if flatten is None else list(flatten(tensor)[0])


def _each_once(memory: Any) -> Any:
    """Return a view of ``memory`` in which each value is only once: without the dimensions along
    which it is repeated.
    """
    if 0 not in memory.stride():
        return memory
    sizes = [
        1 if stride == 0 and size > 1 else size
        for size, stride in zip(memory.shape, memory.stride(), strict=True)
    ]
    return memory.as_strided(sizes, memory.stride())


def _layout(tensor: Any) -> Any:
    """Return the tensor's address and layout; equal for two tensors with the same elements."""
    return tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _make_lazy_again(torch: Any, tensor: Any, kind: type) -> None:
    if type(tensor) is not kind:
        tensor.__class__ = kind
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        tensor.grad = None


_NO_ROOM: Any = object()


def _copied(torch: Any, plain: Any) -> Any:
    """Return a copy, on the CPU if the GPU has little memory; ``_NO_ROOM`` if the host has little
    memory for a large tensor."""
    if plain.layout is not torch.strided:
        return plain.clone()
    if plain.is_cuda and plain.nbytes > _SMALL_BYTES:  # The question takes longer than a copy.
        free, _ = torch.cuda.mem_get_info(plain.device)
        if free < ROOM * plain.nbytes:
            return plain.cpu()
    elif plain.nbytes > _LARGE_BYTES and available_bytes() < ROOM * plain.nbytes:
        return _NO_ROOM
    return plain.clone()


_num_optimizer_steps = [0]
_counted: list[Any] = []  # the handle of the hook that counts


def _count_optimizer_steps() -> None:
    optim: Any = sys.modules.get("torch.optim.optimizer")
    if optim is None or _counted:
        return

    def count(*ignored: Any) -> None:
        _num_optimizer_steps[0] += 1

    _counted.append(optim.register_optimizer_step_pre_hook(count))


def _num_bytes(state: Any) -> int:
    """Return the size of the tensors and arrays in nested containers."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return sum(map(_num_bytes, state))
    return int(getattr(state, "nbytes", 0))
