"""Helpers of functions that are called once: edits of them count only when a run begins. Pure.

A function or a constant counts from the next start if every mention of it is in functions that do.
That is reported only if it is certain: each mention is a direct call, or a read, in the body of
such a function, and no code in the workspace finds functions by computed names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

import msgspec

from monarch_reload.plan.misfit_calls import Definitions
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.spelling import FunctionNode, dotted, root_of

_LATER = (*FunctionNode, ast.Lambda, ast.GeneratorExp)
_COMPUTED = frozenset({"globals", "locals", "exec", "eval", "import_module", "__import__"})
_ATTRIBUTE_FUNCTIONS = frozenset({"getattr", "vars", "setattr", "delattr"})
_SIGNS_OF_COMPUTED_NAMES = re.compile(
    rb"\b(globals|locals|exec|eval|import_module|__import__|getattr|vars|setattr|delattr|__dict__|"
    rb"modules|attrgetter)\b"
)


class _Mention(msgspec.Struct, frozen=True):
    """One mention of a name in a module.

    ``within`` is the qualified name of the function whose body reads the name, or "" for any other
    mention. ``is_call``: the name is called, not only read.
    """

    within: str
    is_call: bool


class _Text:
    """All names that a module mentions, indexed once: an edit may concern hundreds of names."""

    def __init__(self, tree: ast.Module) -> None:
        self.definitions = Definitions(tree.body)
        self._plain: dict[str, list[_Mention]] = {}
        self._arguments: set[str] = set()
        self._otherwise: set[str] = set()  # attributes, strings, declarations
        self._imported: set[str] = set()
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for within, node in _with_functions(tree):
            if isinstance(node, ast.Name):
                is_read = isinstance(node.ctx, ast.Load)
                # An assignment at the top level is the definition itself.
                if is_read or within:
                    mention = _Mention(within if is_read else "", id(node) in called)
                    self._plain.setdefault(node.id, []).append(mention)
            elif isinstance(node, ast.ImportFrom):
                self._imported.update(alias.name for alias in node.names)
                self._otherwise.update(
                    alias.name for alias in node.names if alias.asname not in (None, alias.name)
                )
            elif isinstance(node, ast.arg):
                self._arguments.add(node.arg)
            elif isinstance(node, ast.Attribute):
                self._otherwise.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._otherwise.add(node.value)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                self._otherwise.update(node.names)

    def mentions(self, name: str, *, is_home: bool) -> list[_Mention]:
        """Return the mentions of a name. ``is_home``: this module defines the name. If it is False,
        only mentions count that refer to an import of the name.
        """
        mentions: list[_Mention] = []
        is_known = is_home or not self._imported.isdisjoint((name, "*"))
        if is_known:
            mentions += self._plain.get(name, ())
        if name in self._otherwise or (is_known and name in self._arguments):
            mentions.append(_Mention("", False))
        return mentions


class StartHelpers:
    """Tells which functions and values of a workspace are used only at the start of a run.

    ``counts`` takes a module and a qualified name; it returns whether that function is known to run
    only when a run begins.
    """

    def __init__(
        self, sources: Mapping[str, ModuleSource], counts: Callable[[str, str], bool]
    ) -> None:
        self._sources = sources
        self._counts = counts
        self._texts: dict[str, _Text] = {}

    def is_helper(self, module: str, name: str, asked: frozenset[str] = frozenset()) -> bool:
        """Return whether a name is a plain top-level function that is used only at the start of a
        run.

        ``asked`` are functions whose check is in progress. They count as used only at the start,
        because functions may call each other in a circle.
        """
        if (me := f"{module}:{name}") in asked:
            return True
        node = self._text(module).definitions.function(name)
        if not isinstance(node, ast.FunctionDef):
            return False
        is_lazy = any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
        return not is_lazy and self._is_used_at_start(module, name, asked | {me}, must_call=True)

    def is_setting(self, module: str, name: str) -> bool:
        """Return whether one top-level statement assigns a name, and the value is used only at the
        start of a run."""
        return self._text(module).definitions.is_assigned_once(name) and self._is_used_at_start(
            module, name, frozenset(), must_call=False
        )

    def _text(self, module: str) -> _Text:
        if module not in self._texts:
            self._texts[module] = _Text(self._sources[module].tree)
        return self._texts[module]

    def _is_used_at_start(
        self, module: str, name: str, asked: frozenset[str], *, must_call: bool
    ) -> bool:
        callers: dict[tuple[str, str], None] = {}
        word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
        # Its own module first: most names are used there by other code, which decides at once.
        for other in dict.fromkeys((module, *self._sources)):
            if word.search(self._sources[other].text):
                for mention in self._text(other).mentions(name, is_home=other == module):
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
        """Return whether a class is called by code that does not run only at the start. A loss
        class, for example, may be called in each step.
        """
        for module, source in self._sources.items():
            if cls.encode() not in source.text:
                continue
            for within, node in _with_functions(source.tree):
                if not isinstance(node, ast.Call) or _last(node.func) != cls:
                    continue
                if not within or not self._counts(module, within):
                    return True
        return False

    @cached_property
    def _is_opaque(self) -> bool:
        """Whether code in the workspace may reach a function by a computed name."""
        return any(
            _computes_names(source.tree, self._sources)
            for source in self._sources.values()
            if _SIGNS_OF_COMPUTED_NAMES.search(source.text)
        )


def _with_functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield each node with the qualified name of the function whose body has it.

    The name is "" for code that runs when the module is imported, and for nested functions, lambdas
    and the like, which may be called later.
    """
    pending: list[tuple[str, str, ast.AST]] = [("", "", node) for node in tree.body]
    while pending:
        owner, within, node = pending.pop()
        yield within, node
        if isinstance(node, ast.ClassDef):
            inside = "?." if within or owner == "?." else f"{owner}{node.name}."
            rest = [*node.decorator_list, *node.bases, *node.keywords]
            pending += [("?.", "", part) for part in rest]
            pending += [(inside, "", part) for part in node.body]
        elif isinstance(node, FunctionNode):
            # Other code calls nested functions later.
            is_plain = not within and isinstance(node, ast.FunctionDef) and owner != "?."
            body = f"{owner}{node.name}" if is_plain else ""
            rest = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
            pending += [("?.", "", part) for part in rest]
            pending += [("?.", body, part) for part in node.body]
        elif isinstance(node, _LATER):
            pending += [("?.", "", part) for part in ast.iter_child_nodes(node)]
        else:
            pending += [(owner, within, part) for part in ast.iter_child_nodes(node)]


def _computes_names(tree: ast.Module, ours: Collection[str]) -> bool:
    roots = {module.partition(".")[0] for module in ours}
    outside = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if root_of(alias.name) not in roots]
            outside |= {alias.asname or root_of(alias.name) for alias in names}
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
        if isinstance(node, ast.Call) and dotted(node.func) in _ATTRIBUTE_FUNCTIONS:
            name = node.args[1] if len(node.args) > 1 else None
            is_constant = isinstance(name, ast.Constant)
            seen = root_of(dotted(node.args[0]) or "") if node.args else ""
            if not is_constant and seen not in outside:
                return True
    return False


def _last(node: ast.expr) -> str:
    return (dotted(node) or "").rpartition(".")[2]
