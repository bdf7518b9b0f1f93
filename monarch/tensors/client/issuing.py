"""Turns a template and its tensors into a record in the batch, and handles of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.tensors.client.ambient import TensorStream
from monarch.tensors.client.refusals import find_problem, incorrect
from monarch.tensors.client.tensor import Tensor, new_handle, new_maker
from monarch.tensors.client.tracebacks import capture
from monarch.tensors.core.storages import READ_AND_WRITE, Storage
from monarch.tensors.core.templates import FRESH, INPUT_ITSELF, VIEW_OF_INPUT, Result, Template

_NO_STORAGES: tuple[Storage, ...] = ()


def issue(
    template: Template,
    tensors: Sequence[Tensor],
    scalars: list[Any],
    mesh: Any,
    stream: TensorStream,
) -> Any:
    """Issue one operation, and return its handles in the structure that the operation returns."""
    storages = _written(template, tensors, mesh, stream) if template.mutates else _NO_STORAGES
    client = mesh.client
    if client.recording is not None:
        base = client.recording.add(template, tensors, scalars, mesh, stream)
    else:
        with client.lock:
            if client.error is not None or client.is_closed:
                client.check_alive()
            base = client.next_ref
            client.next_ref = base + template.num_out
            batch = client.batch
            segment = batch.segment(mesh.number, stream.number)
            ints = segment.ints
            frees = mesh.frees[stream.number]
            if frees:
                client.take_frees(ints, frees)
            segment.ops.append((len(ints), capture(True, False, False), template, storages))
            ints += (template.number, base)
            for tensor in tensors:
                ints.append(tensor._ref)
            if scalars:
                segment.scalars += scalars
            num = batch.num_ops = batch.num_ops + 1
            if num == 1:
                client.arm()
            elif num >= client.policy.most_ops and not client.num_held:
                client.flush()
    single = template.single
    if single is not None:
        handle = single()
        handle._meta = template.results[0].meta
        handle.mesh = mesh
        handle.stream = stream
        handle._storage = Storage()
        handle._ref = base
        if client.recording is not None:
            client.recording.made(handle)
        return handle
    if template.is_alone and client.recording is None:
        # Most other operations write to an argument, or view it.
        kind = template.single_kind
        if kind == INPUT_ITSELF:
            return tensors[template.single_of]
        if kind == VIEW_OF_INPUT:
            meta = template.results[0].meta
            assert meta is not None
            return new_handle(meta, base, mesh, stream, tensors[template.single_of])
    return template.rebuild(handles(template, tensors, base, mesh, stream))


def handles(
    template: Template, tensors: Sequence[Tensor], base: int, mesh: Any, stream: TensorStream
) -> list[Any]:
    """Return the handles of all results; new references are numbered from ``base``."""
    results: list[Any] = []
    ref = base
    for kind, meta, index in template.results:
        if kind == INPUT_ITSELF:
            results.append(tensors[index])
            continue
        assert meta is not None
        shared = None if kind == FRESH else (tensors if kind == VIEW_OF_INPUT else results)[index]
        results.append(new_handle(meta, ref, mesh, stream, shared))
        if mesh.client.recording is not None:
            mesh.client.recording.made(results[-1])
        ref += 1
    return results


def _written(
    template: Template, tensors: Sequence[Tensor], mesh: Any, stream: TensorStream
) -> Sequence[Storage]:
    storages = [tensors[position]._storage for position in template.mutates]
    for n, storage in enumerate(storages):
        if storage.access != READ_AND_WRITE:
            bad = tensors[template.mutates[n]]

            def problem(tensor: Any, bad: Tensor = bad) -> str | None:
                return find_problem(tensor, mesh, stream, writes=True) if tensor is bad else None

            raise incorrect(template.name, tensors, {}, problem)
    return storages


def builtin(
    mesh: Any,
    stream: TensorStream,
    definition: tuple[Any, ...],
    tensors: Sequence[Tensor] = (),
    scalars: Sequence[Any] = (),
    results: Sequence[Result] = (),
    mutates: tuple[int, ...] = (),
) -> Any:
    """Issue an operation that torch does not have, such as a reduction over a mesh dimension."""
    client = mesh.client
    # The text, because True and 1 are equal.
    key = (repr(definition), tuple(results), mutates, len(tensors))
    template = client.builtins.get(key)
    if template is None:
        single = None
        if len(results) == 1 and results[0].kind == FRESH and results[0].meta is not None:
            single = new_maker(results[0].meta)
        template = Template(
            definition[0], results, num_in=len(tensors), mutates=mutates, single=single
        )
        client.builtins[key] = client.define_template(template, len(scalars), *definition)
    return issue(template, tensors, list(scalars), mesh, stream)
