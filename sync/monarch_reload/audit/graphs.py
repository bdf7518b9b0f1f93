"""Graphs that torch has made of code: by `torch.jit`, `torch.export` and `torch.fx`.

A graph is a copy of what functions did when it was made. No edit reaches it, and it has no
reference to the functions. `torch.jit` writes the source lines of all its operations into a graph,
`torch.export` some of them, `torch.fx` none. Graphs of `torch.compile` follow edits (see
``live/compiled``), and are not looked at here.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from monarch_reload.live.all_objects import objects_of, with_subclasses

_JIT_PLACE = re.compile(r" # (.+):(\d+):\d+$", re.MULTILINE)
_FX_PLACE = re.compile(r'File "(.+?)", line (\d+)')
_MADE_BY_DYNAMO = "dynamo_compile_id"


class SourceOutline:
    """The functions of a source, and the expressions assigned to its names, to compare two
    versions."""

    def __init__(self, text: bytes) -> None:
        try:
            self._tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self._tree = ast.Module([], [])

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """The functions and methods of the module, by qualified name."""
        return {f"{before}{one.name}": one for before, one in self._statements if _is_function(one)}

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Return the expressions assigned to names in the module and its classes, by the bare
        name.
        """
        values: dict[str, str] = {}
        for _, statement in self._statements:
            targets: list[Any] = []
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
                targets = [statement.target]
            for target in targets:
                for name in _names_in(target):
                    values[name] = values.get(name, "") + ast.dump(statement)
        return values

    @cached_property
    def _statements(self) -> list[tuple[str, Any]]:
        """Return the statements of the module and of its classes, each with the prefix of its
        names.
        """
        found: list[tuple[str, Any]] = []
        pending: list[tuple[str, Any]] = [("", one) for one in self._tree.body]
        while pending:
            before, statement = pending.pop(0)
            found.append((before, statement))
            if isinstance(statement, ast.ClassDef):
                pending += [(f"{before}{statement.name}.", one) for one in statement.body]
            elif not _is_function(statement):
                pending += [(before, one) for one in ast.iter_child_nodes(statement)]
        return found

    def changed_at(self, lines: Collection[int], now: SourceOutline) -> list[str]:
        """Return the functions on these lines that differ in the version ``now``, or that read a
        value whose expression differs."""
        changed = []
        values = {
            name for name, value in self.values.items() if now.values.get(name, value) != value
        }
        for name, function in self.functions.items():
            first = min(one.lineno for one in (function, *function.decorator_list))
            if not any(first <= line <= (function.end_lineno or first) for line in lines):
                continue
            other = now.functions.get(name)
            if (
                other is None
                or ast.dump(other) != ast.dump(function)
                or _names_in(function) & values
            ):
                changed.append(name)
        return changed


@dataclass
class MadeGraph:
    """A graph, with the sources that modules ran when it was made, for modules that were replaced
    since."""

    graph: weakref.ref[Any]
    maker: str
    made_on: dict[str, tuple[bytes, str, str]] = field(default_factory=dict)
    """The text, its path and its label, by module."""

    @cached_property
    def places(self) -> Mapping[str, frozenset[int]]:
        """The source lines that the graph comes from, by file."""
        lines: dict[str, set[int]] = {}
        for path, line in _places_of(self.graph()):
            lines.setdefault(os.path.realpath(path), set()).add(int(line))
        return {path: frozenset(some) for path, some in lines.items()}


@dataclass(frozen=True)
class OldGraph:
    """A graph that is still alive; ``functions`` are the qualified names of the changed functions
    in it, if known. ``label`` names the version of the first of them."""

    maker: str
    functions: tuple[str, ...]
    label: str


class OlderGraphs:
    """The graphs that existed when code was replaced."""

    def __init__(self) -> None:
        self._there: list[MadeGraph] = []

    def look(self) -> None:
        """Find the present graphs. Called before new code is tried, which makes graphs of its
        own."""
        known = {id(graph): one for one in self._there if (graph := one.graph()) is not None}
        self._there = [
            known.get(id(graph)) or MadeGraph(weakref.ref(graph), _maker_of(graph))
            for graph in _graphs()
        ]

    def note(self, module: str, text: bytes, path: str, label: str) -> None:
        """Note the text that a module ran until now: the graphs here were made while it did."""
        for made in self._there:
            made.made_on.setdefault(module, (text, path, label))

    def old(self, texts: Mapping[str, bytes]) -> Iterator[OldGraph]:
        """Yield live graphs that are older than the sources ``texts`` that modules run now, by
        name.
        """
        outlines: dict[bytes, SourceOutline] = {}
        for made in self._there:
            if made.graph() is None:
                continue
            functions, labels = [], []
            for module, (text, path, label) in made.made_on.items():
                if module not in texts or text == texts[module]:
                    continue
                before, now = (
                    outlines.setdefault(one, SourceOutline(one)) for one in (text, texts[module])
                )
                lines = made.places.get(os.path.realpath(path), ())
                functions += [f"{module}.{name}" for name in before.changed_at(lines, now)]
                labels.append(label)
            if functions or (labels and made.maker != "torch.jit"):
                yield OldGraph(made.maker, tuple(functions), labels[0])


def _graphs() -> list[Any]:
    """Return the graphs of this process, without parts of other graphs and those of
    `torch.compile`.
    """
    kinds: list[type] = []
    state: Any = sys.modules.get("torch.jit._state")
    if state is not None and state._python_cu.get_functions():
        jit: Any = sys.modules["torch.jit"]
        kinds += [jit.ScriptFunction, *with_subclasses(jit.ScriptModule)]
    fx: Any = sys.modules.get("torch.fx.graph_module")
    # Each graph module has a class of its own, so that without one nothing is searched for.
    if fx is not None and (made := with_subclasses(fx.GraphModule)[1:]):
        kinds += made
        export: Any = sys.modules.get("torch.export.exported_program")
        kinds += [] if export is None else [export.ExportedProgram]
    graphs = [one for one in objects_of(kinds) if _maker_of(one)]
    parts = {id(part) for graph in graphs for part in _parts_of(graph)}
    return [one for one in graphs if id(one) not in parts]


def _parts_of(graph: Any) -> list[Any]:
    own = getattr(graph, "__dict__", {})
    children = getattr(graph, "children", list)
    return [own.get("_graph_module"), own.get("_actual_script_module"), *children()]


def _maker_of(graph: Any) -> str:
    """Return the part of torch that made a graph; "" for a graph that torch makes again when
    needed."""
    module, name = type(graph).__module__, type(graph).__name__
    if module.startswith("torch.jit"):
        return "torch.jit"
    if name == "ExportedProgram" or any(
        one.__module__ == "torch.export._unlift" for one in type(graph).__mro__
    ):
        return "torch.export"
    tracer = getattr(graph.graph, "_tracer_cls", None)
    is_compiled = tracer is None or tracer.__module__ == "torch.fx.experimental.proxy_tensor"
    return "" if is_compiled or _MADE_BY_DYNAMO in graph.meta else "torch.fx"


def _places_of(graph: Any) -> Iterator[tuple[str, str]]:
    if graph is None:
        return
    if _maker_of(graph) == "torch.jit":
        module = getattr(graph, "_c", None)
        methods = [graph] if module is None else map(module._get_method, module._method_names())
        for method in methods:
            yield from _JIT_PLACE.findall(str(method.inlined_graph))
        return
    graph = getattr(graph, "graph_module", graph)
    for node in graph.graph.nodes:
        yield from _FX_PLACE.findall(node.stack_trace or "")


def _is_function(node: Any) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes that a syntax tree mentions."""
    return {
        one.id if isinstance(one, ast.Name) else one.attr
        for one in ast.walk(node)
        if isinstance(one, (ast.Name, ast.Attribute))
    }
