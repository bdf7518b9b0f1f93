"""Find the argument of a call that cannot be pickled, and the part of it that is to blame."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from monarch.wire import payload

_MOST_STEPS = 12
_MOST_LOOKED_AT = 200


def dump_or_say(
    dump: Callable[[], payload.Payload],
    called: str,
    function: Callable[..., Any],
    num_own: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> payload.Payload:
    """Call ``dump`` and return its payload. If it raises, raise an error of the same type that
    names the argument at fault and the part in it.

    The first ``num_own`` parameters of ``function`` are not among the arguments; ``called`` names
    what is called, for people.
    """
    try:
        return dump()
    except Exception as error:
        culprit = _culprit(_named(function, num_own, args, kwargs))
        if culprit is None:
            raise
        text = f"{called}: {culprit} ({error})"
        try:
            explained = type(error)(text)
        except Exception:  # An error that takes other arguments.
            explained = TypeError(text)
        raise explained from error


def answer_words(called: str, value: Any, error: Exception) -> str:
    """Return the text of the error for a value that an endpoint returned and that cannot be
    sent."""
    culprit = _culprit([("", value)])
    return f"{called} returned what cannot be sent: {culprit or error}"


def _named(
    function: Callable[..., Any], num_own: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    try:
        names = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ][num_own:]
    except (TypeError, ValueError):
        names = []
    for index, value in enumerate(args):
        yield (names[index] if index < len(names) else f"argument {index + 1}"), value
    yield from kwargs.items()


def _culprit(values: Any) -> str | None:
    for name, value in values:
        if _fails(value):
            position, inner = _deepest(name, value)
            kind = f"{type(inner).__module__}.{type(inner).__qualname__}".removeprefix("builtins.")
            if not name:
                return f"its {position.lstrip('.')} is a {kind}" if position else f"a {kind}"
            if position == name:
                return f"argument {name!r} cannot be sent, it is a {kind}"
            return f"argument {name!r} cannot be sent: {position} is a {kind}"
    return None


def _fails(value: Any) -> bool:
    try:
        payload.dump(value)
    except Exception:
        return True
    return False


def _deepest(name: str, value: Any) -> tuple[str, Any]:
    """Return the innermost part of ``value`` that cannot be pickled by itself, and its name, such
    as ``data[0].lock``."""
    for _ in range(_MOST_STEPS):
        for position, part in itertools.islice(_parts(name, value), _MOST_LOOKED_AT):
            if part is not value and _fails(part):
                name, value = position, part
                break
        else:
            break
    return name, value


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in [*value.items()])
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif inspect.isfunction(value):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for variable, cell in cells:
            try:
                yield f"{name}'s variable {variable}", cell.cell_contents
            except ValueError:
                continue
    elif isinstance(attributes, dict) and not isinstance(value, type):
        yield from ((f"{name}.{key}", item) for key, item in [*attributes.items()])
