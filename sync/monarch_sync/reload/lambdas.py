"""Lambdas in top-level statements: edited, they take their new code wherever they are held.

Running the statement again would make another scheduler, or register another hook.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Sequence
from itertools import combinations
from types import CodeType, FunctionType

from .closures import pairs_of
from .flips import Attribute
from .patch import same_behaviour
from .source import Source
from .statements import Statement


def new_code_for(before: Statement, after: Statement, running: Source) -> list[Attribute] | None:
    """Flips for the living lambdas of a statement of which nothing else changed.

    `running` is the source that both statements are versions of a part of. None where a lambda is
    not to be found, or is not to be told from another one.
    """
    path = running.path
    old = _compiled(before, path)
    inner = pairs_of(old, _compiled(after, path))
    # Up to Python 3.11 a comprehension is a function as well, which nobody holds.
    pairs = [pair for pair in inner if pair[0].co_name == "<lambda>"]
    lambdas = _lambdas(old)
    if any(one == other for one, other in combinations(lambdas, 2)) or not pairs:
        return None
    functions, everywhere = _functions_of(path), _lambdas(running.code)
    flips: list[Attribute] = []
    for one, new in pairs:
        holders = [function for function in functions if function.__code__ == one]
        if not holders and sum(same_behaviour(one, other) for other in everywhere) == 1:
            # It stood in another line when it was made.
            holders = [f for f in functions if same_behaviour(f.__code__, one)]
        if not holders:
            return None
        flips += [Attribute(function, "__code__", new) for function in holders]
    return flips


def _compiled(statement: Statement, path: str) -> CodeType:
    body: list[ast.stmt] = [statement.node]
    code: CodeType = compile(ast.Module(body, []), path, "exec", dont_inherit=True)
    return code


def _lambdas(code: CodeType) -> Sequence[CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    nested = [one for constant in inner for one in _lambdas(constant)]
    return [one for one in inner if one.co_name == "<lambda>"] + nested


def _functions_of(path: str) -> list[FunctionType]:
    return [
        thing
        for thing in gc.get_objects()
        if type(thing) is FunctionType
        and thing.__code__.co_name == "<lambda>"
        and thing.__code__.co_filename == path
    ]
