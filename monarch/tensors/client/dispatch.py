"""Dispatch of torch operations: find the template by the call's key, or make it; then issue it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from monarch.tensors.client import propagation
from monarch.tensors.client.ambient import TensorStream, ambient
from monarch.tensors.client.issuing import issue
from monarch.tensors.client.operators import ITEM, LIFT, OperatorFacts, facts_of
from monarch.tensors.client.refusals import find_problem, incorrect
from monarch.tensors.client.tensor import Tensor, new_maker, update_meta
from monarch.tensors.core.keys import (
    FLOAT,
    Flattener,
    LocalTensor,
    compare_by_state,
    compare_by_value,
)
from monarch.tensors.core.metas import meta_of
from monarch.tensors.core.storages import alias_pattern
from monarch.tensors.core.templates import FRESH, Result, Template
from monarch.wire.pickler import dumps

_ITEM_REFUSED = (
    "a number out of a distributed tensor (`.item()`, `float(t)`, `if t:`): each proc has a value "
    "of its own, and the program would have to wait for it. Ask one of them: "
    "monarch.fetch_shard(t).result().item(); or decide on the workers, in a function with "
    "monarch.remote(function, propagate=...), or with torch.where"
)

compare_by_value(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
compare_by_state(torch.Generator, lambda generator: bytes(_state_of(generator)))


def _state_of(generator: torch.Generator) -> Any:
    with no_dispatch(), _disable_current_modes():
        return generator.get_state().numpy()


_flatten = Flattener(Tensor, torch.Tensor, dumps).flatten


class AmbientMode(TorchDispatchMode):  # type: ignore[misc]
    """Sends the torch operations of this thread to its active mesh."""

    mesh: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch would wrap each call to keep its compiler out, which is an eighth of the
        # cost of an operation. While a mode is active nothing is compiled anyway.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        mesh = self.mesh
        facts = facts_of(func)
        if mesh is None or facts.is_local:
            return func(*args, **(kwargs or {}))
        if facts.may_be_local and not any(isinstance(value, Tensor) for value in args):
            return func(*args, **(kwargs or {}))
        return dispatch(facts, args, kwargs or {}, mesh)


def dispatch(
    facts: OperatorFacts, args: Sequence[Any], kwargs: Mapping[str, Any], active: Any
) -> Any:
    """Issue a torch operation, and return the handles of its results.

    Raises ``TypeError`` for arguments that it cannot take, and torch's own errors for wrong shapes.
    """
    scalars: list[Any] = []
    tensors: Any = args
    num = 0 if kwargs else len(args)
    # The common kinds of arguments, with the keys that `flatten` would give.
    if num == 2 and type(args[0]) is Tensor and type(args[1]) is Tensor:
        call_key: tuple[Any, ...] = (facts, args[0]._meta, args[1]._meta)
    elif num == 1 and type(args[0]) is Tensor:
        call_key = (facts, args[0]._meta)
    elif num == 2 and facts.second_is_number and type(args[1]) is float and type(args[0]) is Tensor:
        call_key = (facts, args[0]._meta, FLOAT)
        tensors, scalars = args[:1], [args[1]]
    elif (
        num == 3
        and type(args[1]) is type(args[2]) is int
        and type(args[0]) is Tensor
        and not facts.numbers
    ):  # For example a row of a tensor.
        call_key = (facts, args[0]._meta, args[1], args[2])
        tensors = args[:1]
    else:
        key: list[Any] = [facts]
        tensors = []
        try:
            _flatten(args, kwargs, facts.numbers, key, tensors, scalars)
        except LocalTensor as error:
            if facts.func is LIFT:
                return _constant(error.args[0], active)
            mesh = next((t.mesh for t in _all_tensors(args, kwargs)), active)
            raise _refused(facts.name, args, kwargs, mesh, ambient.stream) from None
        if not tensors:
            key += map(repr, scalars)  # The numbers of arange are its shape.
        call_key = tuple(key)
    stream = ambient.stream
    mesh = tensors[0].mesh if tensors else active
    for tensor in tensors:
        if tensor.mesh is not mesh or tensor.stream is not stream or not tensor._storage.access:
            raise _refused(facts.name, args, kwargs, mesh, stream)
    if facts.func is ITEM:
        return _item(args[0])
    client = mesh.client
    template = client.cache.young.get(call_key) or client.cache.older(call_key)
    if template is None:
        template, spec = propagation.of_operator(facts, args, kwargs)
        client.define_template(template, spec.num_scalars, "op", ("aten", facts.name), spec)
        client.remember(call_key, template)
    result = issue(template, tensors, scalars, mesh, stream)
    if tensors and tensors[0]._known is not None and _knows_all(facts, tensors):
        # Compute the value, too: so the program knows the step counts of optimizers.
        value = _known_result(facts, args, kwargs)
        if isinstance(result, Tensor) and value is not None and result._known is None:
            result._known = value
            result._storage.is_known = True
    elif template.mutates:
        _forget_known(template, tensors)
    if facts.changes_shape:
        with no_dispatch():
            facts.func(*args, **kwargs)  # The handle changes too.
        update_meta(args[0])
    return result


def _forget_known(template: Template, tensors: Sequence[Tensor]) -> None:
    """Note that this process does not know the values of the tensors that a call writes to."""
    for position in template.mutates:
        tensors[position]._storage.is_known = False


def dispatch_operator(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Issue a torch operation on the mesh of its tensors, when no mesh is active."""
    return dispatch(facts_of(func), args, kwargs, None)


def dispatch_function(
    name: str,
    where: Callable[[], tuple[str, Any]],
    version: tuple[Any, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    propagate: Callable[..., Any],
    on: Any = None,
    code: Callable[[], Any] | None = None,
) -> Any:
    """Issue a remote function, on the mesh ``on``, the mesh of its tensors, or else the active one.

    ``where`` returns how workers load it, ``version`` differs from older code of the same name, and
    ``propagate`` computes the results' shapes, from tensors without values. A recording that calls
    the function stays valid while ``code`` returns what it returned during the recording.
    """
    stream = ambient.stream
    # Workers have other process groups in each stream, for meshes and groups among the arguments.
    key: list[Any] = [name, stream, *version]
    tensors = check_arguments(name, args, kwargs, key)
    mesh = on or (tensors[0].mesh if tensors else ambient.mesh)
    if mesh is None:
        raise TypeError(
            "Remote functions require an active device mesh, use `with mesh.activate():`"
        )
    if len(tensors) > 1:
        key.append(alias_pattern([tensor._storage for tensor in tensors]))
    key.append(tuple(tensor.requires_grad for tensor in tensors))
    client = mesh.client
    call_key = tuple(key)
    template = client.cache.young.get(call_key) or client.cache.older(call_key)
    if template is None:
        template, spec = propagation.of_function(name, propagate, args, kwargs, version)
        client.define_template(template, 0, "op", where(), spec)
        client.remember(call_key, template)
    if code is not None and client.recording is not None:
        client.recording.uses(code)
    result = issue(template, tensors, [], mesh, stream)
    _forget_known(template, tensors)
    return result


def check_arguments(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: list[Any]
) -> list[Tensor]:
    """Return the tensors of a call, and append what describes its arguments to ``key``.

    Raises ``TypeError`` for tensors that are of different meshes, or not usable in the active
    stream.
    """
    tensors = flatten_arguments(name, args, kwargs, key)
    stream = ambient.stream
    for tensor in tensors:
        if find_problem(tensor, tensors[0].mesh, stream) is not None:
            raise _refused(name, args, kwargs, tensors[0].mesh, stream)
    return tensors


def flatten_arguments(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: list[Any]
) -> list[Tensor]:
    """Return the tensors of a call, and append what describes its arguments to ``key``.

    The tensors may be of any mesh and stream. Raises ``TypeError`` for a tensor of this process.
    """
    tensors: list[Any] = []
    try:
        _flatten(args, kwargs, frozenset(), key, tensors, [])
    except LocalTensor:
        mesh = next((t.mesh for t in _all_tensors(args, kwargs)), ambient.mesh)
        raise _refused(name, args, kwargs, mesh, ambient.stream) from None
    return tensors


def _all_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return propagation.PropagatedCall(args, kwargs, frozenset()).tensors


def _refused(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], mesh: Any, stream: TensorStream
) -> TypeError:
    return incorrect(name, args, kwargs, lambda tensor: find_problem(tensor, mesh, stream))


def _constant(local: torch.Tensor, mesh: Any) -> Tensor:
    """Return a distributed tensor that has a local tensor's values on each member."""
    with _disable_current_modes():
        value = local.detach().contiguous().clone()
        meta = meta_of(value)
    client = mesh.client
    template = Template("torch.tensor", [Result(FRESH, meta)], num_in=0, single=new_maker(meta))
    client.define_template(template, 0, "constant", value)
    tensor: Tensor = issue(template, [], [], mesh, ambient.stream)
    client.forget(template)
    if value.numel() == 1 and client.recording is None:
        tensor._known = value
        tensor._storage.is_known = True
    return tensor


def _item(tensor: Tensor) -> Any:
    if tensor._known is None or not tensor._storage.is_known:
        raise TypeError(_ITEM_REFUSED)
    recorder = tensor.mesh.client.recording
    with _disable_current_modes():
        value = tensor._known.item()
    if recorder is not None:
        recorder.guard(tensor, value)
    return value


def _knows_all(facts: OperatorFacts, tensors: Sequence[Tensor]) -> bool:
    """Return whether this process knows all numbers from which the result can be computed."""
    return (
        not facts.is_random
        and tensors[0].mesh.client.recording is None
        and all(tensor._known is not None and tensor._storage.is_known for tensor in tensors)
    )


def _known_result(
    facts: OperatorFacts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    call = propagation.PropagatedCall(args, kwargs, facts.numbers)
    with _disable_current_modes(), torch.no_grad():
        try:
            value = call.on(facts.func, [tensor._known for tensor in call.tensors])
        except Exception:
            return None
    is_number = isinstance(value, torch.Tensor) and value.numel() == 1
    return value if is_number else None
