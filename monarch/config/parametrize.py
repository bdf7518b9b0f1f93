"""Decorators that run a pytest test under several settings."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from monarch.config.settings import configured

_ARGUMENT = "_config_overrides"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def parametrize_config(**values: Collection[Any]) -> Decorator:
    """Run the test under every combination: ``@parametrize_config(tail_log_lines={0, 20})``.

    Raises ``ValueError`` without any setting. Works for sync and async tests.
    """
    if not values:
        raise ValueError("parametrize_config requires at least one config option")
    return _parametrize(values, list(itertools.product(*values.values())))


def parametrize_config_pointwise(**values: Sequence[Any]) -> Decorator:
    """Run the test under the first value of every setting, then under the second values, and so on.

    Raises ``ValueError`` without any setting, or if the sequences differ in length.
    """
    if not values:
        raise ValueError("parametrize_config_pointwise requires at least one config option")
    lengths = {name: len(sequence) for name, sequence in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all config options need the same number of values: {lengths}")
    return _parametrize(values, list(zip(*values.values(), strict=True)))


def _parametrize(names: Collection[str], rows: list[tuple[Any, ...]]) -> Decorator:
    import pytest  # Only those who write tests have it.

    overrides = [dict(zip(names, row, strict=True)) for row in rows]
    ids = ["-".join(f"{name}={value}" for name, value in each.items()) for each in overrides]
    mark: Decorator = pytest.mark.parametrize(_ARGUMENT, overrides, ids=ids)
    return lambda test: mark(_wrap(test))


def _wrap(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``test`` with one more argument: the settings to run it under."""
    if inspect.iscoroutinefunction(test):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with configured(**kwargs.pop(_ARGUMENT)):
                return await test(*args, **kwargs)

        wrapped: Callable[..., Any] = run_async
    else:

        def run(*args: Any, **kwargs: Any) -> Any:
            with configured(**kwargs.pop(_ARGUMENT)):
                return test(*args, **kwargs)

        wrapped = run
    functools.update_wrapper(wrapped, test)
    signature = inspect.signature(test)
    added = inspect.Parameter(_ARGUMENT, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(signature.parameters.values())
    # Before a ``**kwargs``, which must stay last.
    index = len(parameters) - any(p.kind is p.VAR_KEYWORD for p in parameters)
    parameters.insert(index, added)
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped
