"""What only the beginning of a run takes: helpers of functions that are called once. Pure.

A function or a constant counts from the next start, too, where all that mentions it is in functions
that do. That is said only where it is plain to see: each mention is a direct call, or a reading, in
the body of such a function, and nothing in the workspace finds functions by computed names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from .misfit_calls import Definitions
from .source import Source
from .spelling import FunctionNode, dotted, root_of

_LATER = (*FunctionNode, ast.Lambda, ast.GeneratorExp)
_COMPUTED = frozenset({"globals", "locals", "exec", "eval", "import_module", "__import__"})
_LOOKING = frozenset({"getattr", "vars", "setattr", "delattr"})
_SIGN = re.compile(rb"\b(globals|locals|exec|eval|import_module|__import__|getattr|vars|setattr|"
                   rb"delattr|__dict__|modules|attrgetter)\b")  # fmt: skip


@dataclass(frozen=True)
class _Mention:
    """`within` is the function, by its qualified name, whose body has it; empty for elsewhere.
    `is_call`: it is called there, at once."""

    within: str
    is_call: bool


class StartHelpers:
    """Over all modules of a workspace, by name. `counts` says of a function, by its module and its
    qualified name, whether it is known to run only when a run begins."""

    def __init__(self, sources: Mapping[str, Source], counts: Callable[[str, str], bool]) -> None:
        self._sources = sources
        self._counts = counts

    def is_helper(self, module: str, name: str, asked: frozenset[str] = frozenset()) -> bool:
        """Of a plain function at the top level of a module. Of those `asked`, which call each
        other, somebody has asked already."""
        if (me := f"{module}:{name}") in asked:
            return True
        node = self._definitions(module).function(name)
        if not isinstance(node, ast.FunctionDef):
            return False
        is_lazy = any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
        return not is_lazy and self._is_used_at_start(module, name, asked | {me}, must_call=True)

    def is_setting(self, module: str, name: str) -> bool:
        """Of a name that one statement at the top level assigns."""
        return self._definitions(module).is_assigned_once(name) and self._is_used_at_start(
            module, name, frozenset(), must_call=False
        )

    def _definitions(self, module: str) -> Definitions:
        source = self._sources.get(module)
        return Definitions(source.tree.body if source is not None else ())

    def _is_used_at_start(
        self, module: str, name: str, asked: frozenset[str], *, must_call: bool
    ) -> bool:
        callers: dict[tuple[str, str], None] = {}
        word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
        # Where it is from first: most are taken by others there, and nothing else need be read.
        for other in dict.fromkeys((module, *self._sources)):
            if word.search(self._sources[other].text):
                for mention in self._mentions(other, name, is_home=other == module):
                    if not mention.within or (must_call and not mention.is_call):
                        return False
                    callers[other, mention.within] = None
        if not all(self._runs_at_start(other, within, asked) for other, within in callers):
            return False
        return bool(callers) and not self._is_opaque

    def _runs_at_start(self, module: str, function: str, asked: frozenset[str]) -> bool:
        if self._counts(module, function):
            owner, _, method = function.rpartition(".")
            return method != "__init__" or not self._is_made_elsewhere(owner)
        return "." not in function and self.is_helper(module, function, asked)

    def _is_made_elsewhere(self, cls: str) -> bool:
        """Whether a class is called by what may run in a step, as one of a loss may be."""
        for module, source in self._sources.items():
            if cls.encode() not in source.text:
                continue
            for within, node in _placed(source.tree):
                if not isinstance(node, ast.Call) or _last(node.func) != cls:
                    continue
                if not within or not self._counts(module, within):
                    return True
        return False

    def _mentions(self, module: str, name: str, *, is_home: bool) -> Iterator[_Mention]:
        tree = self._sources[module].tree
        imports = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and any(alias.name in (name, "*") for alias in node.names)
        ]
        for one in imports:
            if any(alias.name == name and alias.asname not in (None, name) for alias in one.names):
                yield _Mention("", False)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for within, node in _placed(tree):
            if isinstance(node, ast.Name) and node.id == name and (is_home or imports):
                is_assigned = not isinstance(node.ctx, ast.Load)
                if is_assigned and is_home and not within:
                    continue  # The definition itself: there is one, at the top level.
                yield _Mention("" if is_assigned else within, id(node) in called)
            elif _may_mean(node, name, is_known=is_home or bool(imports)):
                yield _Mention("", False)

    @cached_property
    def _is_opaque(self) -> bool:
        """Whether somebody may reach a function by a name that no text has."""
        return any(
            _computes_names(source.tree, self._sources)
            for source in self._sources.values()
            if _SIGN.search(source.text)
        )


def _placed(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Each node with the function whose body it is directly in; with nothing for what runs when a
    module is imported, and for what a function makes to be run later."""
    pending: list[tuple[str, str, ast.AST]] = [("", "", node) for node in tree.body]
    while pending:
        owner, within, node = pending.pop()
        yield within, node
        if isinstance(node, ast.ClassDef):
            inside = "?." if within or owner == "?." else f"{owner}{node.name}."
            rest = [*node.decorator_list, *node.bases, *node.keywords]
            pending += [("?.", "", one) for one in rest]
            pending += [(inside, "", one) for one in node.body]
        elif isinstance(node, FunctionNode):
            # Nested ones are run later, by whoever has them.
            is_plain = not within and isinstance(node, ast.FunctionDef) and owner != "?."
            body = f"{owner}{node.name}" if is_plain else ""
            rest = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
            pending += [("?.", "", one) for one in rest]
            pending += [("?.", body, one) for one in node.body]
        elif isinstance(node, _LATER):
            pending += [("?.", "", one) for one in ast.iter_child_nodes(node)]
        else:
            pending += [(owner, within, one) for one in ast.iter_child_nodes(node)]


def _may_mean(node: ast.AST, name: str, *, is_known: bool) -> bool:
    """Whether a node that is no plain name has to do with that one."""
    if isinstance(node, ast.Attribute):
        return node.attr == name
    if isinstance(node, ast.Constant):
        return bool(node.value == name)
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return name in node.names
    return isinstance(node, ast.arg) and is_known and node.arg == name


def _computes_names(tree: ast.Module, ours: Collection[str]) -> bool:
    roots = {module.partition(".")[0] for module in ours}
    outside = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            outside |= {
                alias.asname or root_of(alias.name)
                for alias in node.names
                if root_of(alias.name) not in roots
            }
        elif isinstance(node, ast.ImportFrom):
            is_ours = node.level or root_of(node.module or "") in roots
            outside |= set() if is_ours else {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _COMPUTED:
            return True
        if isinstance(node, ast.Attribute):
            if node.attr in _COMPUTED - {"eval", "exec"} or node.attr == "attrgetter":
                return True
            if node.attr == "__dict__" and root_of(dotted(node.value) or "") not in outside:
                return True
            if dotted(node) == "sys.modules":
                return True
        if isinstance(node, ast.Call) and dotted(node.func) in _LOOKING:
            name = node.args[1] if len(node.args) > 1 else None
            is_said = isinstance(name, ast.Constant)
            seen = root_of(dotted(node.args[0]) or "") if node.args else ""
            if not is_said and seen not in outside:
                return True
    return False


def _last(node: ast.expr) -> str:
    return (dotted(node) or "").rpartition(".")[2]
