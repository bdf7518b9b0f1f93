"""The shapes of a call's results: found by one run on tensors without values, kept as a
template."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensors.client.operators import OperatorFacts
from monarch.tensors.client.tensor import Tensor, new_maker
from monarch.tensors.core.metas import Meta, intern_meta, meta_of, storage_key
from monarch.tensors.core.specs import CallSpec, SpecMaker, fill, paths, take_apart
from monarch.tensors.core.templates import (
    FRESH,
    INPUT_ITSELF,
    VIEW_OF_INPUT,
    VIEW_OF_RESULT,
    Result,
    Template,
)

FAKE = FakeTensorMode()

_NEEDS_VALUES = (
    DynamicOutputShapeException,
    DataDependentOutputException,
    UnsupportedFakeTensorException,
)

# It logs wrong shapes at ERROR, with forty lines; the error is raised anyway.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: False)


def fake_of(meta: Meta) -> torch.Tensor:
    """Return a tensor without values that has the shape, strides, dtype and device of ``meta``.

    Call it inside ``FAKE``, torch's mode for such tensors.
    """
    if meta.offset == 0:
        return torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device)
    base = torch.empty(meta.num_elements, dtype=meta.dtype, device=meta.device)
    return torch.as_strided(base, meta.size, meta.stride, meta.offset)


def view_of(base: torch.Tensor, meta: Meta) -> torch.Tensor:
    """Return a tensor without values that has the shape, strides and dtype of ``meta``.

    It shares the memory of ``base`` if it fits into that. Call it inside ``FAKE``.
    """
    num_bytes = meta.num_elements * meta.dtype.itemsize
    if base.dtype == meta.dtype and num_bytes <= base.untyped_storage().nbytes():
        return torch.as_strided(base, meta.size, meta.stride, meta.offset)
    return fake_of(meta)


class PropagatedCall:
    """One call with its arguments taken apart, from which a template is made."""

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: frozenset[Any]
    ) -> None:
        maker = SpecMaker(Tensor, numbers)
        self.args, self.kwargs = maker.arguments(args, kwargs)
        self.tensors: list[Tensor] = maker.tensors
        self.scalars = maker.scalars

    def spec(self, results: Sequence[Result], where: Sequence[tuple[Any, ...]]) -> CallSpec:
        stored = [
            None if result.kind == INPUT_ITSELF else path
            for result, path in zip(results, where, strict=True)
        ]
        return CallSpec(self.args, self.kwargs, len(self.tensors), len(self.scalars), stored)

    def on(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call ``function`` with the call's arguments, and return its result.

        ``tensors`` replace the tensors among the arguments, in their order.
        """
        args = [fill(spec, tensors, self.scalars) for spec in self.args]
        kwargs = {name: fill(spec, tensors, self.scalars) for name, spec in self.kwargs}
        return function(*args, **kwargs)


class Propagated:
    """The result of a call on tensors without values."""

    def __init__(self, result: Any, inputs: Sequence[Any], is_operator: bool) -> None:
        self.spec, tensors = take_apart(result, torch.Tensor)
        self.paths = paths(self.spec)
        self.results = _results(tensors, inputs, is_operator)

    def template(
        self, name: str, call: PropagatedCall, mutates: tuple[int, ...], held: object = None
    ) -> Template:
        single = None
        if self.spec == ("t", 0) and self.results[0].kind == FRESH:
            meta = self.results[0].meta
            assert meta is not None
            single = new_maker(meta)
        return Template(
            name,
            self.results,
            num_in=len(call.tensors),
            mutates=mutates,
            rebuild=functools.partial(fill, self.spec),
            single=single,
            is_alone=self.spec == ("t", 0),
            held=held,
        )


def _results(
    tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], is_operator: bool
) -> list[Result]:
    of_inputs: dict[int, int] = {}
    for n, given in enumerate(inputs):
        of_inputs.setdefault(storage_key(given), n)
    of_results: dict[Any, int] = {}
    results = []
    for n, tensor in enumerate(tensors):
        storage = storage_key(tensor)
        # A function that returns its argument gives a new handle, for the function's failure.
        itself = next((k for k, given in enumerate(inputs) if given is tensor), None)
        if itself is not None and is_operator:
            results.append(Result(INPUT_ITSELF, None, itself))
        elif storage in of_inputs:
            results.append(Result(VIEW_OF_INPUT, meta_of(tensor), of_inputs[storage]))
        elif storage in of_results:
            results.append(Result(VIEW_OF_RESULT, meta_of(tensor), of_results[storage]))
        else:
            results.append(Result(FRESH, meta_of(tensor)))
        of_results.setdefault(storage, n)
    return results


def of_operator(
    facts: OperatorFacts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Template, CallSpec]:
    """Return the template of a torch operator, and the call's arguments as specs.

    Raises torch's own errors for wrong shapes, and ``TypeError`` if the result depends on values.
    """
    call = PropagatedCall(args, kwargs, facts.numbers)
    func = facts.func
    with _disable_current_modes(), FAKE:
        fakes = [fake_of(tensor._meta) for tensor in call.tensors]
        try:
            result = call.on(func, fakes)
        except _NEEDS_VALUES:
            raise TypeError(
                f"{func}: what comes out of it depends on the values, which only the workers have. "
                "Fetch them (monarch.fetch_shard(t).result()), or do it on the workers, in a "
                "function with monarch.remote(function, propagate=...)"
            ) from None
        propagated = Propagated(result, fakes, is_operator=True)
        for fake, tensor in zip(fakes, call.tensors, strict=True):
            if not facts.changes_shape and meta_of(fake) is not tensor._meta:
                raise TypeError(
                    f"{func} changes the shape of an argument in place, which a distributed tensor "
                    "cannot follow: use the operation that returns a new tensor"
                )
    written = {id(tensor) for tensor in facts.written_tensors(args, kwargs)}
    mutates = tuple(n for n, tensor in enumerate(call.tensors) if id(tensor) in written)
    template = propagated.template(facts.name, call, mutates)
    return template, call.spec(propagated.results, propagated.paths)


def of_function(
    name: str,
    propagate: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    held: object,
) -> tuple[Template, CallSpec]:
    """Make the template of a remote function.

    The rule ``propagate`` gets tensors without values, and returns such tensors in place of the
    results. ``held`` is an object that must live as long as the template. Raises ``TypeError`` if
    the rule needs values.
    """
    call = PropagatedCall(args, kwargs, frozenset())
    with _disable_current_modes(), FAKE:
        fakes = _with_aliases(call.tensors)
        versions = [fake._version for fake in fakes]
        try:
            result = call.on(propagate, fakes)
        except _NEEDS_VALUES as error:
            raise TypeError(
                f"the rule for what {name} returns needs the values of its tensors ({error}), and "
                "a rule gets tensors without values: have it return tensors of shapes that follow "
                "from the arguments' shapes (torch.empty(...)), or let the function return what "
                "depends on values to monarch.call_on_shard_and_fetch(function, ...)"
            ) from error
        propagated = Propagated(_as_fakes(result), fakes, is_operator=False)
        mutates = tuple(n for n, fake in enumerate(fakes) if fake._version > versions[n])
    template = propagated.template(name, call, mutates, held)
    return template, call.spec(propagated.results, propagated.paths)


def _with_aliases(tensors: Sequence[Tensor]) -> list[torch.Tensor]:
    """Return a tensor without values for each of ``tensors``.

    The returned tensors share storage where ``tensors`` share memory.
    """
    bases: dict[int, Any] = {}
    fakes = []
    for tensor in tensors:
        meta, key = tensor._meta, id(tensor._storage)
        base = bases.get(key)
        fakes.append(fake_of(meta) if base is None else view_of(base, meta))
        bases.setdefault(key, fakes[-1])
    return fakes


def _as_fakes(result: Any) -> Any:
    """Return a rule's result, with a fake for each real tensor in it.

    A fake has a shape and no values, as the tensors have that a rule makes inside ``FAKE``.
    """
    spec, tensors = take_apart(result, torch.Tensor)
    return fill(spec, [FAKE.from_tensor(t) if _is_real(t) else t for t in tensors])


def _is_real(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and not hasattr(tensor, "fake_mode")


def contiguous_meta(size: Sequence[int], dtype: Any, device: Any) -> Meta:
    """Return the ``Meta`` of a new contiguous tensor of this size."""
    stride: list[int] = []
    step = 1
    for length in reversed(size):
        stride.insert(0, step)
        step *= max(length, 1)
    return intern_meta(
        torch.Size(size), tuple(stride), offset=0, dtype=dtype, device=device, layout=torch.strided
    )
