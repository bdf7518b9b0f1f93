"""The effect of a function on its arguments, found by running it on one shard."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from monarch.tensors.core.metas import Meta, meta_of, storage_key
from monarch.tensors.core.specs import Spec, fill, take_apart
from monarch.tensors.worker.current import WorkerMesh, alone, group_of_one
from monarch.tensors.worker.definitions import resolve, tensors_in


class _DescribedTensor(NamedTuple):
    """The shape and dtype of a result, and the input or earlier result whose memory it views."""

    meta: Meta
    of_input: int | None
    of_result: int | None


class Described(NamedTuple):
    """The structure of a result, its tensors, and the positions of inputs that were written to."""

    spec: Spec
    tensors: list[_DescribedTensor]
    written: list[int]

    def on(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return tensors of the described sizes and types, for these inputs, without running the
        function.

        New memory is not initialized; inputs that the function would write to are set to 0.
        """
        for position in self.written:
            inputs[position].zero_()
        results: list[torch.Tensor] = []
        for meta, of_input, of_result in self.tensors:
            if of_input is not None:
                base = inputs[of_input]
            elif of_result is not None:
                base = results[of_result]
            else:
                base = torch.empty(meta.num_elements, dtype=meta.dtype, device=meta.device)
            results.append(torch.as_strided(base, meta.size, meta.stride, meta.offset))
        return fill(self.spec, results)


def describe(where: tuple[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
    """Run a function on copies of its arguments, and describe its result.

    Afterwards the random states are restored. Process groups among the arguments become groups of
    this rank alone, since other ranks do not run the function.
    """
    with alone():
        function = resolve(where)
    memo: dict[int, Any] = {}
    args, kwargs = copy.deepcopy((args, kwargs), _by_reference((args, kwargs), memo))
    inputs = tensors_in((args, kwargs))
    versions = [tensor._version for tensor in inputs]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        result = function(*args, **kwargs)
    written = [n for n, tensor in enumerate(inputs) if tensor._version > versions[n]]
    spec, results = take_apart(result, torch.Tensor)
    of_inputs = {storage_key(tensor): n for n, tensor in reversed(list(enumerate(inputs)))}
    of_results: dict[int, int] = {}
    described = []
    for n, tensor in enumerate(results):
        storage = storage_key(tensor)
        views = of_inputs.get(storage), of_results.get(storage)
        described.append(_DescribedTensor(meta_of(tensor), *views))
        of_results.setdefault(storage, n)
    return Described(spec, described, written)


def _by_reference(value: Any, memo: dict[int, Any]) -> dict[int, Any]:
    """Fill ``memo`` with the objects that are not copied, and return it.

    These are all objects but tensors and plain containers.
    """
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
