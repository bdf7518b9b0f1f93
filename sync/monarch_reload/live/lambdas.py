"""Lambdas in top-level statements: when edited, they take their new code wherever there are
references to them.

Running the statement again would make another scheduler, or register another hook.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType, FunctionType

from monarch_reload.live.closures import pairs_of
from monarch_reload.live.live_functions import Functions
from monarch_reload.live.patch import likeness, same_behaviour
from monarch_reload.source.codes import inner_codes
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import Attribute


class Lambdas:
    """The live lambdas of a file, and the lambdas of the source that it runs."""

    def __init__(self, running: ModuleSource) -> None:
        self._running = running

    @cached_property
    def _functions(self) -> Mapping[CodeType, Sequence[FunctionType]]:
        functions = defaultdict(list)
        for function in Functions.living().in_file(self._running.path):
            if function.__code__.co_name == "<lambda>":
                functions[function.__code__].append(function)
        return functions

    @cached_property
    def _living(self) -> Mapping[Hashable, Sequence[CodeType]]:
        return _by_likeness(self._functions)

    @cached_property
    def _written(self) -> Mapping[Hashable, Sequence[CodeType]]:
        return _by_likeness(_lambdas(self._running.code))

    def new_code_for(self, before: Statement, after: Statement) -> list[Attribute] | None:
        """Return changes for the live lambdas of a statement in which only lambdas changed.

        ``None`` if a lambda cannot be found in the process, or if it is not clear which of two
        lambdas it is.
        """
        old = _compiled(before, self._running.path)
        inner = pairs_of(old, _compiled(after, self._running.path))
        # Up to Python 3.11 a comprehension is a function as well, which no object holds.
        pairs = [pair for pair in inner if pair[0].co_name == "<lambda>"]
        lambdas = _lambdas(old)
        if len(set(lambdas)) < len(lambdas) or not pairs:
            return None
        flips: list[Attribute] = []
        for old_code, new in pairs:
            holders = list(self._functions.get(old_code, ()))
            if not holders and len(_same(old_code, self._written)) == 1:
                # It was made when it was on another line.
                same = _same(old_code, self._living)
                holders = [function for code in same for function in self._functions[code]]
            if not holders:
                return None
            flips += [Attribute(function, "__code__", new) for function in holders]
        return flips


def _by_likeness(codes: Iterable[CodeType]) -> Mapping[Hashable, Sequence[CodeType]]:
    by_likeness = defaultdict(list)
    for code in codes:
        by_likeness[likeness(code)].append(code)
    return by_likeness


def _same(code: CodeType, among: Mapping[Hashable, Sequence[CodeType]]) -> list[CodeType]:
    return [other for other in among.get(likeness(code), ()) if same_behaviour(code, other)]


def _compiled(statement: Statement, path: str) -> CodeType:
    body: list[ast.stmt] = [statement.placed]
    code: CodeType = compile(ast.Module(body, []), path, "exec", dont_inherit=True)
    return code


def _lambdas(code: CodeType) -> Sequence[CodeType]:
    return [inner for inner in inner_codes(code) if inner.co_name == "<lambda>"]
