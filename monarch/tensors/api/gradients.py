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
    """The part of autograd's graph between the roots and the tensors whose gradients are requested.

    ``next_node`` returns its nodes in the order in which they can run.
    """

    def __init__(self, roots: Sequence[GradientEdge], wanted: Sequence[GradientEdge]) -> None:
        order = _postorder([edge.node for edge in roots])
        targets = {edge.node for edge in wanted}
        #: The nodes on the way from a root to a wanted tensor.
        self.needed: set[Any] = set()
        for node in order:
            later = (child for child, _ in node.next_functions)
            if node in targets or any(child in self.needed for child in later):
                self.needed.add(node)
        #: How many gradients each node must get before it can run.
        self._num_awaited = dict.fromkeys(order, 0)
        for node in order:
            if node in self.needed:
                for child, _ in node.next_functions:
                    if child is not None:
                        self._num_awaited[child] += 1
        #: The nodes that can run, the latest forward operation first.
        self._ready: list[tuple[int, int, Any]] = []
        self._num_pushed = 0
        for node in dict.fromkeys(edge.node for edge in roots):
            if self._num_awaited[node] == 0:
                self._push(node)

    def _push(self, node: Any) -> None:
        self._num_pushed += 1
        heapq.heappush(self._ready, (-node._sequence_nr(), self._num_pushed, node))

    def next_node(self) -> Any:
        """Return the next node that can run; ``None`` if there is no more."""
        return heapq.heappop(self._ready)[2] if self._ready else None

    def has_run(self, node: Any) -> None:
        """Record that a node has run, which may make its children ready to run."""
        for child, _ in node.next_functions:
            if child is not None:
                self._num_awaited[child] -= 1
                if self._num_awaited[child] == 0 and child in self.needed:
                    self._push(child)


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
        tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        seeds = list(grad_roots) if grad_roots is not None else [None] * len(tensors)
        edges = [_edge(root) for root in tensors]
        wanted = [_edge(tensor) for tensor in with_respect_to]
        self._graph = _Graph(edges, wanted)
        #: The edges whose gradients are yet to be yielded.
        self._remaining = iter(wanted)
        #: The nodes and outputs whose gradients are requested.
        self._wanted = {(edge.node, edge.output_nr) for edge in wanted}
        #: Their gradients, as far as they are computed.
        self._results: dict[tuple[Any, int], Any] = {}
        #: The sums of the gradients that nodes have got so far.
        self._sums: dict[tuple[Any, int], Any] = {}
        self._done: set[Any] = set()
        for root, seed, edge in zip(tensors, seeds, edges, strict=True):
            with _active_place_of(root):
                gradient = torch.ones_like(root) if seed is None else seed
                self._add(edge.node, edge.output_nr, gradient)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        edge = next(self._remaining)
        while edge.node not in self._done and (node := self._graph.next_node()) is not None:
            self._run(node)
        return self._results.get((edge.node, edge.output_nr))

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
        total = self._sums.get((node, slot))
        self._sums[node, slot] = gradient if total is None else total + gradient

    def _run(self, node: Any) -> None:
        self._done.add(node)
        slots = range(max(1, len(node._input_metadata)))
        gradients = [self._sums.pop((node, slot), None) for slot in slots]
        for slot, gradient in enumerate(gradients):
            if (node, slot) in self._wanted:
                self._results[node, slot] = gradient
        needed, children = self._graph.needed, node.next_functions
        some = next((gradient for gradient in gradients if gradient is not None), None)
        if some is not None and any(child in needed for child, _ in children):
            with _active_place_of(some), torch.no_grad():
                results = _backward(node, gradients)
                for (child, slot), result in zip(children, results, strict=False):
                    if child in needed:
                        with _active_place_of(result):
                            self._add(child, slot, result)
        self._graph.has_run(node)


def _backward(node: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    is_custom = isinstance(node, torch.autograd.function.BackwardCFunction)
    results = (node.apply if is_custom else node)(*gradients)
    results = results if isinstance(results, tuple) else (results,)
    if is_custom:
        # It returns a gradient for each argument; the graph has edges for tensors only.
        needed = zip(results, node.needs_input_grad, strict=False)
        of_tensors = iter([gradient for gradient, is_needed in needed if is_needed])
        results = tuple(
            None if child is None else next(of_tensors) for child, _ in node.next_functions
        )
    return results


def _active_place_of(tensor: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch computes on the mesh and stream of ``tensor``.

    The context does nothing if ``tensor`` is not a distributed tensor.
    """
    if not isinstance(tensor, Tensor):
        return contextlib.nullcontext()
    return Activation(mesh=tensor.mesh if ambient.mode else None, stream=tensor.stream)


def grad_generator(
    roots: Any, with_respect_to: Iterable[Any], grad_roots: Iterable[Any] | None = None
) -> Iterator[Any]:
    """Yield the gradients of ``roots`` in the order of ``with_respect_to``.

    See ``GradientGenerator``. A pipeline can reduce each gradient while the next ones are not yet
    computed.
    """
    return GradientGenerator(roots, with_respect_to, grad_roots)


def gradient_execution_order(roots: Sequence[Any], with_respect_to: Sequence[Any]) -> list[int]:
    """Return the order in which gradients can be computed, as positions in ``with_respect_to``."""
    wanted = [_edge(tensor) for tensor in with_respect_to]
    graph = _Graph([_edge(root) for root in roots], wanted)
    order: list[int] = []
    while (node := graph.next_node()) is not None:
        order += [n for n, edge in enumerate(wanted) if edge.node is node]
        graph.has_run(node)
    return order


def grad_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a differentiable function that calls ``fn``, which returns (result, backward).

    ``backward`` takes the gradients of the results. It returns the gradients of the tensors among
    the arguments, in their order, with ``None`` for a tensor that has no gradient.
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        packed: list[Any] = []

        class Function(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                fn_args, fn_kwargs = _with_tensors(leaves, spec, inputs)
                result, ctx.backward_of_user = fn(*fn_args, **fn_kwargs)
                packed[:] = torch.utils._pytree.tree_flatten(result)
                return tuple(leaf for leaf in packed[0] if isinstance(leaf, torch.Tensor))

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                results = ctx.backward_of_user(*gradients)
                results = results if isinstance(results, tuple) else (results,)
                return results + (None,) * (len(tensors) - len(results))

        outputs = Function.apply(*tensors)
        result_leaves, result_spec = packed
        return _with_tensors(result_leaves, result_spec, outputs)

    return wrapped


def _with_tensors(leaves: Sequence[Any], spec: Any, tensors: Iterable[Any]) -> Any:
    """Build a tree of these leaves, with ``tensors`` in place of the leaves that are tensors."""
    rest = iter(tensors)
    filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return torch.utils._pytree.tree_unflatten(filled, spec)
