"""A copy of an actor's state, to go back to where a step on new code has failed.

What belongs to the state: the actor's attributes and, in them, models with parameters, buffers and
gradients, whatever has a ``state_dict``, tensors, arrays, generators, lists and dictionaries,
objects of the user's own classes; and the random states of the process. An actor that knows better
defines ``__keep__(self)``, which returns a copy, and ``__restore__(self, kept)``. Neither can wind
back what lies outside: files, iterators, what others were sent.
"""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["keep"]

Undo = Callable[[], object]

_MAX_DEPTH = 4
_MAX_LOOKED_INTO = 1000  # elements of a container that may be more than values
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ROOM = 3  # a copy stays on its GPU where this many more would fit


def keep(instance: object) -> Undo:
    """Copy the state; what is returned puts it back, as often as it is called."""
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
        # What is wrapped for a process group is not held on to: its hooks would go on firing when
        # the group is another one.
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
        elif not isinstance(value, type) and _has_state(value):
            told = copy.deepcopy(value.state_dict())
            # A copy, as some go on working with what they are given.
            self._undos.append(lambda: value.load_state_dict(copy.deepcopy(told)))
        elif _is_of_users_class(value):
            self.look_into(value, depth)

    def _keep_module(self, torch: Any, module: Any) -> None:
        """Its tensors, and which parts it has. The undoing goes from the parts to the tensors."""
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
