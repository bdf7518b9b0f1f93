"""Checks whether the arguments of a call fit the endpoint, in the caller's process."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any


class _Bounds:
    """The number of positional arguments that a function takes, as a quick check."""

    def __init__(self, function: Callable[..., Any], num_own: int) -> None:
        self.signature = inspect.signature(function)
        kinds = inspect.Parameter
        parameters = list(self.signature.parameters.values())
        plain = [
            p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        rest = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        self.low = sum(p.default is kinds.empty for p in plain) - num_own
        self.high = 1 << 30 if rest else len(plain) - num_own
        self.needs_keywords = any(
            p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters
        )


@functools.lru_cache(maxsize=4096)
def _bounds(function: Callable[..., Any], num_own: int, *version: object) -> _Bounds:
    # The key includes all that a reload may change in place.
    return _Bounds(function, num_own)


def check_arguments(
    function: Callable[..., Any],
    num_own: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    called: str,
) -> None:
    """Raise ``TypeError`` at the sender if the arguments do not fit the function.

    The receiver adds ``num_own`` arguments itself (``self``, the response port); ``called`` names
    the function in the error text.
    """
    code = getattr(function, "__code__", None)
    num_defaults = len(getattr(function, "__defaults__", None) or ())
    keywords = tuple(getattr(function, "__kwdefaults__", None) or ())
    bounds = _bounds(function, num_own, code, num_defaults, keywords)
    fits = bounds.low <= len(args) <= bounds.high and not bounds.needs_keywords
    if kwargs or not fits:
        try:
            bounds.signature.bind(*[None] * num_own, *args, **kwargs)
        except TypeError as error:
            raise TypeError(_misfit(called, str(error), bounds.signature, num_own)) from None


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def _misfit(called: str, problem: str, signature: inspect.Signature, num_own: int) -> str:
    """Return an error text that says how the arguments of a call differ from the signature."""
    import difflib  # For mistakes only.

    parameters = list(signature.parameters.values())[num_own:]
    unexpected = _UNEXPECTED.search(problem)
    names = [parameter.name for parameter in parameters]
    near = difflib.get_close_matches(unexpected[1], names, 1) if unexpected else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    taken = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return f"{called}: {problem}{hint}; it takes {taken}"
