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
from monarch_reload.source.spelling import FunctionNode

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
        functions = [(p, node) for p, node in self._statements if isinstance(node, FunctionNode)]
        return {f"{prefix}{node.name}": node for prefix, node in functions}

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
        """Return the statements of the module and of its classes, each with the prefix of the names
        in it: "" for the module, and ``Class.`` for a class.
        """
        statements: list[tuple[str, Any]] = []
        pending: list[tuple[str, Any]] = [("", node) for node in self._tree.body]
        while pending:
            prefix, statement = pending.pop(0)
            statements.append((prefix, statement))
            if isinstance(statement, ast.ClassDef):
                pending += [(f"{prefix}{statement.name}.", node) for node in statement.body]
            elif not isinstance(statement, FunctionNode):
                pending += [(prefix, node) for node in ast.iter_child_nodes(statement)]
        return statements

    def changed_at(self, lines: Collection[int], newer: SourceOutline) -> list[str]:
        """Return the qualified names of functions that contain one of these ``lines`` and differ in
        the version ``newer``. A function also counts if it reads a value whose expression differs
        there.
        """
        changed = []
        values = {
            name for name, value in self.values.items() if newer.values.get(name, value) != value
        }
        for name, function in self.functions.items():
            first = min(node.lineno for node in (function, *function.decorator_list))
            if not any(first <= line <= (function.end_lineno or first) for line in lines):
                continue
            other = newer.functions.get(name)
            if (
                other is None
                or ast.dump(other) != ast.dump(function)
                or _names_in(function) & values
            ):
                changed.append(name)
        return changed


@dataclass
class MadeGraph:
    """A graph and its sources: for each module that was replaced after the graph was made, the text
    that the module ran before."""

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
    """A graph that is still alive although code that it was made from has changed.

    ``functions`` are the qualified names of the changed functions in it, empty if unknown.
    ``label`` names the earlier version of the first changed module among its sources.
    """

    maker: str
    functions: tuple[str, ...]
    label: str


class OlderGraphs:
    """The graphs that existed when code was replaced."""

    def __init__(self) -> None:
        self._graphs: list[MadeGraph] = []

    def look(self) -> None:
        """Find the present graphs. Called before new code is tried, which makes graphs of its
        own."""
        noted = {id(made_graph.graph()): made_graph for made_graph in self._graphs}
        self._graphs = [
            noted.get(id(graph)) or MadeGraph(weakref.ref(graph), _maker_of(graph))
            for graph in _graphs()
        ]

    def note(self, module: str, text: bytes, path: str, label: str) -> None:
        """Record the text that a module ran until now as a source of every graph that ``look``
        found. ``label`` names that version."""
        for made_graph in self._graphs:
            made_graph.made_on.setdefault(module, (text, path, label))

    def old(self, texts: Mapping[str, bytes]) -> Iterator[OldGraph]:
        """Yield the live graphs that were made from older text than their modules run now.
        ``texts`` has the present text of each module, by name.

        A graph of ``torch.jit`` is yielded only if a function in it has changed.
        """
        outlines: dict[bytes, SourceOutline] = {}
        for made_graph in self._graphs:
            if made_graph.graph() is None:
                continue
            functions, labels = [], []
            for module, (text, path, label) in made_graph.made_on.items():
                if module not in texts or text == texts[module]:
                    continue
                older, newer = (
                    outlines.setdefault(version, SourceOutline(version))
                    for version in (text, texts[module])
                )
                lines = made_graph.places.get(os.path.realpath(path), ())
                functions += [f"{module}.{name}" for name in older.changed_at(lines, newer)]
                labels.append(label)
            if functions or (labels and made_graph.maker != "torch.jit"):
                yield OldGraph(made_graph.maker, tuple(functions), labels[0])


def _graphs() -> list[Any]:
    """Return the graphs of this process, without graphs of ``torch.compile``, and without graphs
    that are a part of another graph.
    """
    kinds: list[type] = []
    state: Any = sys.modules.get("torch.jit._state")
    if state is not None and state._python_cu.get_functions():
        jit: Any = sys.modules["torch.jit"]
        kinds += [jit.ScriptFunction, *with_subclasses(jit.ScriptModule)]
    fx: Any = sys.modules.get("torch.fx.graph_module")
    # Each graph module has a class of its own, so that without one nothing is searched for.
    if fx is not None and (graph_classes := with_subclasses(fx.GraphModule)[1:]):
        kinds += graph_classes
        export: Any = sys.modules.get("torch.export.exported_program")
        kinds += [] if export is None else [export.ExportedProgram]
    graphs = [graph for graph in objects_of(kinds) if _maker_of(graph)]
    parts = {id(part) for graph in graphs for part in _parts_of(graph)}
    return [graph for graph in graphs if id(graph) not in parts]


def _parts_of(graph: Any) -> list[Any]:
    attributes = getattr(graph, "__dict__", {})
    children = getattr(graph, "children", list)
    return [attributes.get("_graph_module"), attributes.get("_actual_script_module"), *children()]


def _maker_of(graph: Any) -> str:
    """Return the part of torch that made a graph, such as ``torch.fx``; "" for a graph of
    ``torch.compile``, which torch makes again when needed."""
    module, name = type(graph).__module__, type(graph).__name__
    if module.startswith("torch.jit"):
        return "torch.jit"
    if name == "ExportedProgram" or any(
        base.__module__ == "torch.export._unlift" for base in type(graph).__mro__
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


def _names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes that a syntax tree mentions."""
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute))
    }
