"""Names that functions of a module read and that nothing binds: a NameError when they are run.

They are found from the compiled code, which has all scopes. In doubt, a name is taken to exist.
"""

from __future__ import annotations

import ast
import builtins
import dis
import sys
from collections.abc import Collection, Iterator
from types import CodeType

from monarch_reload.source.codes import inner_codes
from monarch_reload.source.spelling import catches

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_OPERATIONS = {dis.opmap[name]: name for name in (*_LOADS, *_STORES) if name in dis.opmap}
_SHIFT = {"LOAD_GLOBAL": 1} if sys.version_info >= (3, 11) else {}  # its lowest bit is a flag
# Uses of these may bind names that the text does not show.
_UNSEEN = frozenset({"exec", "globals", "vars", "locals", "setattr", "__dict__", "execfile"})
# Other code adds these to builtins, or other systems have them.
_ELSEWHERE = frozenset({"_", "__class__", "WindowsError", "get_ipython", "reveal_type", "profile"})


def may_be_unbound(code: CodeType, known_names: Collection[str]) -> bool:
    """Return whether a function may read an unbound name: a fast check before `unbound_names`."""
    is_function = bool(code.co_flags & _NEWLOCALS)
    return is_function and any(
        name not in known_names and not hasattr(builtins, name) for name in _names_in(code, _LOADS)
    )


def unbound_names(
    code: CodeType, tree: ast.Module, known_names: Collection[str]
) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every read of an unbound name in a function. `known_names` are names
    that the running module has.

    Modules that bind names dynamically, and lines that handle a NameError, are skipped.
    """
    codes = [code, *inner_codes(code)]
    if not _UNSEEN.isdisjoint(code.co_names) or _has_open_star(tree):
        return
    bound: set[str] = {*known_names, *dir(builtins), *_ELSEWHERE, *_module_names(code)}
    for inner in codes:
        bound |= _names_in(inner, _STORES)
    expected = _lines_expecting_errors(tree)
    for inner in codes:
        if inner is code or _is_class_of(code, inner) or _names_in(inner, _LOADS) <= bound:
            continue
        line = inner.co_firstlineno
        for instruction in dis.get_instructions(inner):
            line = _line_of(instruction, line)
            name = instruction.argval
            if instruction.opname in _LOADS and name not in bound and line not in expected:
                yield line, name


def _names_in(code: CodeType, operations: Collection[str]) -> set[str]:
    """Return the names that a function's instructions of the kinds ``operations`` mention. It is
    many times faster than ``dis``.
    """
    names: set[str] = set()
    raw, extension = code.co_code, 0
    for at in range(0, len(raw), 2):
        operation, argument = raw[at], raw[at + 1] | extension
        extension = argument << 8 if operation == dis.EXTENDED_ARG else 0
        name = _OPERATIONS.get(operation)
        if name in operations:
            names.add(code.co_names[argument >> _SHIFT.get(name or "", 0)])
    return names


def _module_names(code: CodeType) -> Iterator[str]:
    yield from ("__name__", "__file__", "__doc__", "__spec__", "__path__", "__package__")
    yield from ("__loader__", "__builtins__", "__cached__", "__annotations__", "__debug__")
    yield from ("__module__", "__qualname__", "__dict__", "__firstlineno__", "__type_params__")
    yield from ("__classdict__", "__conditional_annotations__", "__annotate__")


def _is_class_of(module: CodeType, code: CodeType) -> bool:
    """Return whether the code is the body of a top-level class, which runs with the module."""
    return code in module.co_consts and not code.co_flags & _NEWLOCALS


_NEWLOCALS = 2


def _line_of(instruction: dis.Instruction, before: int) -> int:
    line = getattr(instruction, "line_number", None)  # since Python 3.13
    if line is None and instruction.starts_line is not None:
        line = instruction.starts_line
    return before if line is None or isinstance(line, bool) else line


def _has_open_star(tree: ast.Module) -> bool:
    """Return whether the module has an ``import *``, whose names its text does not show."""
    return any(
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)
    )


def _lines_expecting_errors(tree: ast.Module) -> set[int]:
    """Return the numbers of lines in which an unbound name is expected: in a `try` that catches a
    NameError, or in a branch whose condition asks for a version or for a name.
    """
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and catches(node, _CAUGHT):
            lines |= _lines(node.body)
        elif isinstance(node, (ast.If, ast.IfExp)) and _depends_on_environment(node.test):
            lines |= _lines([node])
    return lines


def _lines(nodes: Collection[ast.AST]) -> set[int]:
    return {
        line
        for node in nodes
        for line in range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
    }


_CAUGHT = frozenset({"NameError", "Exception", "BaseException"})


_ASKED = ("version", "platform", "py2", "py3", "python", "type_checking", "name")


def _depends_on_environment(test: ast.expr) -> bool:
    """Return whether a condition asks for a version or for a name: `if PY2:`, `if sys.version_info
    < (3,):`, `if "x" in globals():`"""
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(test) if isinstance(part, ast.Attribute)}
    return any(word in name.lower() for name in names for word in _ASKED) or not names.isdisjoint(
        {"globals", "dir", "hasattr"}
    )
