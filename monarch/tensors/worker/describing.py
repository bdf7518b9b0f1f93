"""The effect of a function on its arguments, found by running it on one shard."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from monarch.tensors.core.specs import Spec, SpecMaker, fill
from monarch.tensors.worker.current import WorkerMesh, alone, group_of_one
from monarch.tensors.worker.definitions import resolve, tensors_in


class _Looks(NamedTuple):
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any
    device: str
    of_input: int | None
    of_result: int | None


class Described(NamedTuple):
    """The structure of a result, its tensors' looks, and the positions of inputs that were written
    to."""

    spec: Spec
    looks: list[_Looks]
    written: list[int]

    def on(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return tensors of the described sizes and types, for these inputs, without running the
        function.

        New memory is not initialized; inputs that the function would write to are set to 0.
        """
        for position in self.written:
            inputs[position].zero_()
        made: list[torch.Tensor] = []
        for one in self.looks:
            where = (one.size, one.stride, one.offset)
            if one.of_input is not None:
                made.append(torch.as_strided(inputs[one.of_input], *where))
            elif one.of_result is not None:
                made.append(torch.as_strided(made[one.of_result], *where))
            else:
                reach = (
                    1
                    + one.offset
                    + sum(
                        (size - 1) * step for size, step in zip(one.size, one.stride, strict=True)
                    )
                )
                num = reach if all(one.size) else 0
                base = torch.empty(num, dtype=one.dtype, device=one.device)
                made.append(torch.as_strided(base, *where))
        return fill(self.spec, made)


def describe(where: tuple[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
    """Run a function on copies of its arguments and describe the result; random states are
    restored.

    A process group among the arguments is one of this rank alone: other ranks do not run it.
    """
    with alone():
        function = resolve(where)
    memo: dict[int, Any] = {}
    args, kwargs = copy.deepcopy((args, kwargs), _by_reference((args, kwargs), memo))
    inputs = tensors_in((args, kwargs))
    before = [tensor._version for tensor in inputs]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        result = function(*args, **kwargs)
    written = [n for n, tensor in enumerate(inputs) if tensor._version > before[n]]
    maker = SpecMaker(lambda value: isinstance(value, torch.Tensor), frozenset())
    spec = maker.spec(result)
    of_inputs = {_storage(tensor): n for n, tensor in reversed(list(enumerate(inputs)))}
    of_results: dict[int, int] = {}
    looks = []
    for n, tensor in enumerate(maker.tensors):
        storage = _storage(tensor)
        looks.append(
            _Looks(
                size=tuple(tensor.size()),
                stride=tensor.stride(),
                offset=tensor.storage_offset(),
                dtype=tensor.dtype,
                device=str(tensor.device),
                of_input=of_inputs.get(storage),
                of_result=of_results.get(storage),
            )
        )
        of_results.setdefault(storage, n)
    return Described(spec, looks, written)


def _by_reference(value: Any, memo: dict[int, Any]) -> dict[int, Any]:
    """Fill ``memo`` with the objects that must not be copied: no tensors, no plain containers."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _by_reference(item, memo)
    elif isinstance(value, dict):
        for item in value.values():
            _by_reference(item, memo)
    elif isinstance(value, dist.ProcessGroup):
        memo[id(value)] = group_of_one()  # The others do not take part.
    elif isinstance(value, WorkerMesh):
        memo[id(value)] = value.alone()
    elif not isinstance(value, torch.Tensor):
        memo[id(value)] = value
    return memo


def _storage(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
