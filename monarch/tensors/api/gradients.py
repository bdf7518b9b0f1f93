"""Backward, one gradient at a time.

The nodes of autograd's graph can be called. This module walks the graph itself, the latest forward
operation first, and only as far as the requested gradient needs.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from monarch.tensors.client.ambient import Activation, ambient
from monarch.tensors.client.tensor import Tensor

Where = Any


def _edge(tensor: Any) -> GradientEdge:
    if isinstance(tensor, GradientEdge):
        return tensor
    if not tensor.requires_grad:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} does not require grad, so that there is no "
            "gradient of it or by it: call requires_grad_() on what it is to be taken of, before "
            "the forward, and do that outside of torch.no_grad()"
        )
    return get_gradient_edge(tensor)


class _Graph:
    """The part of autograd's graph between the roots and the tensors whose gradients are
    requested."""

    def __init__(self, roots: Sequence[GradientEdge], wanted: Sequence[GradientEdge]) -> None:
        order = _postorder([edge.node for edge in roots])
        targets = {edge.node for edge in wanted}
        self.needed: set[Any] = set()
        for node in order:
            later = (child for child, _ in node.next_functions)
            if node in targets or any(child in self.needed for child in later):
                self.needed.add(node)
        # How many gradients are to come into each node before it can run.
        self.awaited = dict.fromkeys(order, 0)
        for node in order:
            if node in self.needed:
                for child, _ in node.next_functions:
                    if child is not None:
                        self.awaited[child] += 1


def _postorder(roots: Sequence[Any]) -> list[Any]:
    order: list[Any] = []
    seen = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(root.next_functions))]
        while stack:
            node, children = stack[-1]
            for child, _ in children:
                if child is not None and child not in seen:
                    seen.add(child)
                    stack.append((child, iter(child.next_functions)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


class GradientGenerator:
    """Yields the gradients of ``roots`` with respect to each of ``with_respect_to``, in that order.

    Each is computed when it is requested. It is ``None`` for a tensor that the roots do not depend
    on. Each operation runs on the mesh and stream of its gradient.
    """

    def __init__(
        self,
        roots: Any,
        with_respect_to: Iterable[Any],
        grad_roots: Iterable[Any] | None = None,
        context_restorer: Callable[..., Any] | None = None,
    ) -> None:
        own = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        seeds = list(grad_roots) if grad_roots is not None else [None] * len(own)
        edges = [_edge(root) for root in own]
        self._asked = [_edge(one) for one in with_respect_to]
        self._wanted = {(edge.node, edge.output_nr) for edge in self._asked}
        self._graph = _Graph(edges, self._asked)
        self._buffers: dict[tuple[Any, int], Any] = {}
        self._found: dict[tuple[Any, int], Any] = {}
        self._done: set[Any] = set()
        self._heap: list[tuple[int, int, Any]] = []
        self._num_pushed = 0
        for root, seed, edge in zip(own, seeds, edges, strict=True):
            with _place_of(root):
                self._add(
                    edge.node, edge.output_nr, torch.ones_like(root) if seed is None else seed
                )
        for node in dict.fromkeys(edge.node for edge in edges):
            if self._graph.awaited[node] == 0:
                self._push(node)
        self._next = iter(self._asked)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        edge = next(self._next)
        while edge.node not in self._done and self._heap:
            self._run(heapq.heappop(self._heap)[2])
        return self._found.get((edge.node, edge.output_nr))

    def _push(self, node: Any) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (-node._sequence_nr(), self._num_pushed, node))

    def _add(self, node: Any, slot: int, gradient: Any) -> None:
        if gradient is None:
            return
        looks = node._input_metadata
        if slot < len(looks):
            shape = tuple(looks[slot].shape)
            if tuple(gradient.shape) != shape:
                gradient = gradient.sum_to_size(shape)
            if gradient.dtype != looks[slot].dtype:
                gradient = gradient.to(looks[slot].dtype)
        before = self._buffers.get((node, slot))
        self._buffers[node, slot] = gradient if before is None else before + gradient

    def _run(self, node: Any) -> None:
        self._done.add(node)
        slots = range(max(1, len(node._input_metadata)))
        gradients = [self._buffers.pop((node, slot), None) for slot in slots]
        for slot, gradient in enumerate(gradients):
            if (node, slot) in self._wanted:
                self._found[node, slot] = gradient
        children = node.next_functions
        given = next((one for one in gradients if one is not None), None)
        with _place_of(given), torch.no_grad():
            results: Sequence[Any] = ()
            if given is not None and any(child in self._graph.needed for child, _ in children):
                results = _backward(node, gradients)
            for n, (child, slot) in enumerate(children):
                if child is None:
                    continue
                if child in self._graph.needed and n < len(results):
                    with _place_of(results[n]):
                        self._add(child, slot, results[n])
                self._graph.awaited[child] -= 1
                if self._graph.awaited[child] == 0 and child in self._graph.needed:
                    self._push(child)


def _backward(node: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    is_custom = isinstance(node, torch.autograd.function.BackwardCFunction)
    results = (node.apply if is_custom else node)(*gradients)
    results = results if isinstance(results, tuple) else (results,)
    if is_custom:
        # It answers for all arguments; the graph has edges for those alone that are tensors.
        needed = zip(results, node.needs_input_grad, strict=False)
        of_tensors = iter([one for one, is_needed in needed if is_needed])
        results = tuple(
            None if child is None else next(of_tensors) for child, _ in node.next_functions
        )
    return results


def _place_of(tensor: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch computes on the gradient's own mesh and stream."""
    if not isinstance(tensor, Tensor):
        return contextlib.nullcontext()
    return Activation(mesh=tensor.mesh if ambient.mode else None, stream=tensor.stream)


def grad_generator(
    roots: Any, with_respect_to: Iterable[Any], grad_roots: Iterable[Any] | None = None
) -> Iterator[Any]:
    """Yield the gradients of ``roots`` one by one, in the given order; see ``GradientGenerator``.

    A pipeline can reduce each gradient while the next ones are not yet computed.
    """
    return GradientGenerator(roots, with_respect_to, grad_roots)


def gradient_execution_order(roots: Sequence[Any], with_respect_to: Sequence[Any]) -> list[int]:
    """Return the order in which gradients can be computed, as positions in ``with_respect_to``."""
    edges, asked = [_edge(root) for root in roots], [_edge(one) for one in with_respect_to]
    graph = _Graph(edges, asked)
    heap = [(-edge.node._sequence_nr(), n, edge.node) for n, edge in enumerate(edges)]
    heap = [entry for entry in heap if graph.awaited[entry[2]] == 0]
    heapq.heapify(heap)
    order: list[int] = []
    num_pushed = len(heap)
    while heap:
        node = heapq.heappop(heap)[2]
        order += [n for n, edge in enumerate(asked) if edge.node is node and n not in order]
        for child, _ in node.next_functions:
            if child is None:
                continue
            graph.awaited[child] -= 1
            if graph.awaited[child] == 0 and child in graph.needed:
                num_pushed += 1
                heapq.heappush(heap, (-child._sequence_nr(), num_pushed, child))
    return order


def grad_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``fn``, which returns (result, backward), a differentiable function.

    ``backward`` maps the gradients of the results to the gradients of the arguments that are
    tensors, in their order, with ``None`` for those that have none.
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        packed: list[Any] = []

        class Function(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                rest = iter(given)
                filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
                own_args, own_kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
                result, ctx.backward_of_user = fn(*own_args, **own_kwargs)
                results, result_spec = torch.utils._pytree.tree_flatten(result)
                is_tensor = [isinstance(one, torch.Tensor) for one in results]
                packed[:] = [results, result_spec, is_tensor]
                return tuple(x for x in results if isinstance(x, torch.Tensor))

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                given = ctx.backward_of_user(*gradients)
                given = given if isinstance(given, tuple) else (given,)
                return given + (None,) * (len(tensors) - len(given))

        made = iter(Function.apply(*tensors))
        results, result_spec, is_tensor = packed
        filled = [next(made) if tensor else x for x, tensor in zip(results, is_tensor, strict=True)]
        return torch.utils._pytree.tree_unflatten(filled, result_spec)

    return wrapped
