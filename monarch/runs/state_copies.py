"""A copy of an actor's state, to go back to where a step on new code has failed.

What belongs to the state: the actor's attributes and, in them, models with parameters, buffers and
gradients, all that has a ``state_dict``, tensors, arrays, generators, lists and dictionaries,
objects of the user's own classes; and the random states of the process. An actor that knows better
defines ``__keep__(self)``, which returns a copy, and ``__restore__(self, kept)``. Neither can wind
back what lies outside: files, iterators, what others were sent.

``watch`` is for every call, where ``keep`` would be too much: it copies what is small, and of large
tensors and arrays it notes that they are not to change. Most of what fails does so before it has
changed any; where it has, they cannot be put back.
"""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Undo = Callable[[], object]

_MAX_DEPTH = 4
_MAX_LOOKED_INTO = 1000  # elements of a container that may be more than values
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ROOM = 3  # a copy stays on its GPU where this many more would fit
_SMALL_BYTES = 64 * 1024
_LARGE_BYTES = 64 * 1024 * 1024


class Changed(Exception):
    """Something that was only watched has changed, and cannot be put back."""


def keep(instance: object) -> Undo:
    """Copy the state; the function returned puts it back, as often as it is called."""
    undos = list(_random_states())
    if hasattr(instance, "__keep__"):
        kept = instance.__keep__()
        undos.append(lambda: instance.__restore__(kept))  # type: ignore[attr-defined]
    else:
        _Keeper(undos).look_into(instance)

    def put_back() -> None:
        for undo in undos:
            undo()

    return put_back


def watch(instance: object) -> Undo | None:
    """Copy what is small of the state, and note the rest; the function returned puts it back, or
    raises ``Changed``. ``None`` where only the actor itself can tell what belongs to it."""
    if hasattr(instance, "__keep__"):
        return None
    undos = list(_random_states())
    watcher = _ChangeWatcher(undos)
    watcher.look_into(instance)

    def put_back() -> None:
        for check in watcher.checks:
            check()
        for undo in undos:
            undo()

    return put_back


def _random_states() -> Iterator[Undo]:
    ours = random.getstate()
    yield lambda: random.setstate(ours)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        theirs = numpy.random.get_state()
        yield lambda: numpy.random.set_state(theirs)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        on_cpu = torch.get_rng_state()
        yield lambda: torch.set_rng_state(on_cpu)
        if torch.cuda.is_initialized():
            # By number: the current device is a thread's, and another thread may put it back.
            device = torch.cuda.current_device()
            on_gpu = torch.cuda.get_rng_state(device)
            yield lambda: torch.cuda.set_rng_state(on_gpu, device)


class _Keeper:
    """Walks through the attributes of an object; each thing is copied once."""

    def __init__(self, undos: list[Undo]) -> None:
        self._undos = undos
        self._seen: dict[int, object] = {}  # with the object, so that no other gets its id

    def look_into(self, owner: Any, depth: int = 0) -> None:
        attributes = getattr(owner, "__dict__", None)
        if attributes is None:
            return
        before = dict(attributes)
        for value in before.values():
            self._look_at(value, depth + 1)
        # A model that is wrapped for a process group is not held on to: its hooks would go on
        # firing when the group is another one.
        wrappers = [name for name, value in before.items() if _is_parallel(value)]
        for name in wrappers:
            del before[name]

        def put_back() -> None:
            left = {name: attributes[name] for name in wrappers if name in attributes}
            attributes.clear()
            attributes.update(before | left)

        self._undos.append(put_back)

    def _look_at(self, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen or depth > _MAX_DEPTH:
            return
        self._seen[id(value)] = None if _is_parallel(value) else value
        torch: Any = sys.modules.get("torch")
        numpy: Any = sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.nn.Module):
            self._keep_module(torch, value)
        elif torch is not None and isinstance(value, torch.Tensor):
            self._keep_tensor(torch, value)
        elif torch is not None and isinstance(value, torch.Generator):
            state = value.get_state()
            self._undos.append(lambda: value.set_state(state))
        elif isinstance(value, random.Random):
            drawn = value.getstate()
            self._undos.append(lambda: value.setstate(drawn))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            self._keep_array(value)
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits = copy.deepcopy(value.bit_generator.state)
            self._undos.append(lambda: setattr(value.bit_generator, "state", bits))
        elif isinstance(value, (list, dict, set, collections.deque)):
            self._keep_container(value, depth)
        elif torch is not None and isinstance(value, torch.optim.Optimizer):
            self._keep_optimizer(value)
        elif not isinstance(value, type) and _has_state(value):
            self._keep_told(value)
        elif _is_of_users_class(value):
            self.look_into(value, depth)

    def _keep_module(self, torch: Any, module: Any) -> None:
        """Keeps a module's tensors, and which parts it has. The undoing goes from parts to
        tensors."""
        for part in module.modules():
            if _is_parallel(part):
                continue
            self._seen[id(part)] = part
            tables = [part._parameters, part._buffers, part._modules]
            before = [dict(table) for table in tables]
            undo = functools.partial(_refill, part, tables, before, part.training)
            self._undos.append(undo)
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in self._seen:
                self._seen[id(tensor)] = tensor
                self._keep_tensor(torch, tensor)

    def _keep_tensor(self, torch: Any, tensor: Any) -> None:
        value = _copied(torch, tensor)
        gradient = None if tensor.grad is None else _copied(torch, tensor.grad)
        device = tensor.device

        def put_back() -> None:
            with torch.no_grad():
                if tensor.shape == value.shape:
                    tensor.copy_(value)
                else:
                    tensor.data = value.to(device, copy=True)
            tensor.grad = None if gradient is None else gradient.to(device, copy=True)

        def put_back_inner() -> None:
            with torch.no_grad():
                tensor.copy_(value)

        self._undos.append(put_back if tensor.is_leaf else put_back_inner)

    def _keep_optimizer(self, optimizer: Any) -> None:
        self._keep_told(optimizer)

    def _keep_told(self, value: Any) -> None:
        """Keeps an object that tells its state, and takes it back."""
        told = copy.deepcopy(value.state_dict())
        # A copy, as some go on working with what they are given.
        self._undos.append(lambda: value.load_state_dict(copy.deepcopy(told)))

    def _keep_array(self, array: Any) -> None:
        value = array.copy()

        def put_back() -> None:
            if array.flags.writeable:
                array[...] = value

        self._undos.append(put_back)

    def _keep_container(self, container: Any, depth: int) -> None:
        before = container.copy()
        elements = before.values() if isinstance(before, dict) else before
        if len(before) <= _MAX_LOOKED_INTO:
            for element in elements:
                self._look_at(element, depth + 1)
        add = (
            container.extend
            if isinstance(container, (list, collections.deque))
            else container.update
        )

        def put_back() -> None:
            container.clear()
            add(before)

        self._undos.append(put_back)


class _ChangeWatcher(_Keeper):
    """``checks`` raise ``Changed``."""

    def __init__(self, undos: list[Undo]) -> None:
        super().__init__(undos)
        self.checks: list[Undo] = []
        self._room_for_gradients = _LARGE_BYTES
        _count_optimizer_steps()
        before = _num_optimizer_steps[0]
        # Some write to weights in ways that are not counted there.
        self._check(lambda: _num_optimizer_steps[0] == before, "an optimizer has made a step")

    def _check(self, is_good: Callable[[], bool], what: str) -> None:
        def check() -> None:
            if not is_good():
                raise Changed(what)

        self.checks.append(check)

    def _keep_tensor(self, torch: Any, tensor: Any) -> None:
        if tensor.nbytes <= _SMALL_BYTES and not tensor.requires_grad:
            super()._keep_tensor(torch, tensor)
            return
        self._must_stay(tensor)
        if not tensor.is_leaf:
            return
        gradient = tensor.grad
        if gradient is None:
            self._undos.append(lambda: setattr(tensor, "grad", None))
            return
        self._must_stay(gradient)
        self._room_for_gradients -= gradient.nbytes
        if self._room_for_gradients > 0:
            self._undos.append(lambda: setattr(tensor, "grad", gradient))
        else:  # They are let go at the beginning of a step, as a rule, and are to be gone then.
            there = weakref.ref(gradient)
            self._check(lambda: tensor.grad is there() is not None, "gradients have changed")

    def _must_stay(self, tensor: Any) -> None:
        """Torch counts what writes into a tensor."""
        torch: Any = sys.modules["torch"]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            self._check(lambda: False, f"a {type(tensor).__name__} may have changed")
            return
        version, pointer = tensor._version, tensor.data_ptr()
        there = weakref.ref(tensor)

        def is_as_it_was() -> bool:
            now = there()
            # Where it is gone, its holder says what became of it.
            return now is None or (now._version, now.data_ptr()) == (version, pointer)

        self._check(is_as_it_was, "weights, or what the optimizer knows, have changed already")

    def _keep_optimizer(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        before = [dict(group) for group in groups]
        for entries in optimizer.state.values():
            for value in entries.values() if isinstance(entries, dict) else ():
                if hasattr(value, "_version"):
                    self._must_stay(value)

        def put_back() -> None:
            for group, entries in zip(groups, before, strict=True):
                group.clear()
                group.update(entries)

        self._check(lambda: len(groups) == len(before), "the optimizer has other parameters")
        self._undos.append(put_back)

    def _keep_told(self, value: Any) -> None:
        if _num_bytes(value.state_dict()) <= _LARGE_BYTES // 64:
            super()._keep_told(value)
        else:
            self._check(lambda: False, f"a {type(value).__name__} may have changed")

    def _keep_array(self, array: Any) -> None:
        if array.nbytes <= _SMALL_BYTES:
            super()._keep_array(array)
        else:  # Nothing counts what writes into one.
            self._check(lambda: False, "a large array may have changed")

    def _keep_container(self, container: Any, depth: int) -> None:
        if len(container) <= _MAX_LOOKED_INTO:
            super()._keep_container(container, depth)
        else:
            before = len(container)
            self._check(lambda: len(container) == before, "a large container has changed")


_num_optimizer_steps = [0]
_counted: list[Any] = []  # the function that takes the counting away again


def _count_optimizer_steps() -> None:
    optim: Any = sys.modules.get("torch.optim.optimizer")
    if optim is None or _counted:
        return

    def count(*ignored: Any) -> None:
        _num_optimizer_steps[0] += 1

    _counted.append(optim.register_optimizer_step_pre_hook(count))


def _num_bytes(state: Any) -> int:
    """The size of the tensors and arrays in nested containers."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return sum(map(_num_bytes, state))
    return int(getattr(state, "nbytes", 0))


def _refill(part: Any, tables: list[Any], before: list[Any], training: bool) -> None:
    part.training = training
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def _copied(torch: Any, tensor: Any) -> Any:
    """A copy that needs no room where there is little of it."""
    plain = tensor.detach()
    if plain.is_cuda:
        free, _ = torch.cuda.mem_get_info(plain.device)
        if free < _ROOM * plain.nbytes:
            return plain.cpu()
    return plain.clone()


def _is_parallel(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.parallel.DistributedDataParallel)


def _has_state(value: Any) -> bool:
    methods = (getattr(type(value), name, None) for name in ("state_dict", "load_state_dict"))
    return all(callable(method) for method in methods)


def _is_of_users_class(value: object) -> bool:
    """Whether it is made of a class that no package brought along: those have workings that only
    they know."""
    kind = type(value)
    if inspect.ismodule(value) or isinstance(value, type) or callable(value):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    is_library = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return (
        not is_library
        and "site-packages" not in file
        and bool(file or kind.__module__ == "__main__")
    )
