"""The parts of a module that its import executes: branches not taken bind and read nothing. Pure.

`if __name__ == "__main__":` may bind names that a definition above it binds. In an imported module
the definition counts.
"""

from __future__ import annotations

import ast
import copy
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from monarch_reload.source.spelling import FunctionNode, dotted
from monarch_reload.source.statements import Statement

_MARKS = ("__main__", "TYPE_CHECKING", "sys.", "os.name")
_OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_NAMES_IN_SYS = ("version_info", "hexversion", "platform", "byteorder", "maxsize")
_FACTS = {
    **{f"sys.{name}": getattr(sys, name) for name in _NAMES_IN_SYS},
    "sys.version_info.major": sys.version_info.major,
    "sys.version_info.minor": sys.version_info.minor,
    "sys.implementation.name": sys.implementation.name,
    "os.name": os.name,
}


def executed(
    statements: tuple[Statement, ...], namespace: Mapping[str, Any]
) -> tuple[Statement, ...]:
    """Return the statements without the branches that the module cannot have taken, as their
    conditions have fixed values in this process.

    A program (``__main__``) keeps all branches: its main guard has run, and its names are in use.
    """
    if namespace.get("__name__") == "__main__":
        return statements
    return tuple(_executed(statement, namespace) for statement in statements)


def _executed(statement: Statement, namespace: Mapping[str, Any]) -> Statement:
    if not isinstance(statement.node, _WITH_BODIES) or not any(
        mark in statement.text for mark in _MARKS
    ):
        return statement
    taken = _Taken(namespace)
    node = taken.visit(copy.deepcopy(statement.node))
    return replace(statement, node=node) if taken.has_cut else statement


_WITH_BODIES = (ast.If, ast.Try, ast.With, ast.For, ast.While)


class _Taken(ast.NodeTransformer):
    """Empties the branches that their conditions rule out; line numbers stay the same."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self.has_cut = False

    def visit(self, node: ast.AST) -> Any:
        inside = (*FunctionNode, ast.ClassDef, ast.expr)
        return node if isinstance(node, inside) else super().visit(node)

    def visit_If(self, node: ast.If) -> ast.If:
        try:
            is_taken = bool(self._value(node.test))
        except (ValueError, TypeError, IndexError):
            pass
        else:
            cut = node.orelse if is_taken else node.body
            self.has_cut |= any(not isinstance(statement, ast.Pass) for statement in cut)
            if is_taken:
                node.orelse = []
            else:
                node.body = [ast.copy_location(ast.Pass(), node.body[0])]
        self.generic_visit(node)
        return node

    def _value(self, node: ast.expr) -> Any:
        """Return the value that a condition has throughout this process. Raises ValueError if it is
        not known."""
        if isinstance(node, ast.BoolOp):
            return self._any_or_all(node.values, isinstance(node.op, ast.Or))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._value(node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            compare = _OPERATORS.get(type(node.ops[0]))
            if compare is not None:
                return compare(self._value(node.left), self._value(node.comparators[0]))
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(map(self._value, node.elts))
        if isinstance(node, ast.Subscript):
            return self._value(node.value)[self._index(node.slice)]
        return self._fact(dotted(node) or "")

    def _index(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Slice):
            return self._value(node)
        return slice(*(part and self._value(part) for part in (node.lower, node.upper, node.step)))

    def _any_or_all(self, nodes: Iterable[ast.expr], is_or: bool) -> bool:
        """Return the value of an ``or`` or ``and`` whose operands are ``nodes``. A known operand
        may decide it; if none does, the error of an unknown operand is raised.
        """
        unknown: Exception | None = None
        for node in nodes:
            try:
                if bool(self._value(node)) is is_or:
                    return is_or
            except (ValueError, TypeError, IndexError) as error:
                unknown = error
        if unknown is not None:
            raise unknown
        return not is_or

    def _fact(self, name: str) -> Any:
        root, _, rest = name.partition(".")
        live = self._namespace.get(root)
        if name == "__name__" and isinstance(live, str):
            return live
        if name == "TYPE_CHECKING" and live in (None, False):
            return False
        if rest == "TYPE_CHECKING" and (live is None or live is sys.modules.get("typing")):
            return False
        if name in _FACTS and (live is None or live is sys.modules.get(root)):
            return _FACTS[name]
        raise ValueError(f"{name!r} may be anything")
