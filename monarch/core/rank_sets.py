"""Sets of ranks as people write them: ``3``, ``0-3,7``, ``::2``, ``host=2,gpus=0-3``, ``all``.

Upstream's ``ranks(...)``, whose grammar is stricter, is read by ``parse_ranks``:

    SEL   = INT | INT,INT[,...] | [a]:[b][:[s]] | dim=(RANGE | (LIST) | INT), ...
    RANGE = [a]:[b][:[s]], with 0, ``sys.maxsize`` and 1 for what is missing

There a negative number, a trailing comma and a list of one in brackets are errors. Blanks between
tokens mean nothing in either. Pure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from monarch.mesh.ranges import ranges_of

_OneDim = int | list[int] | range
RanksType = _OneDim | dict[str, _OneDim]


class BadRanks(ValueError):
    """A text is not a set of ranks. The message says what was expected."""


_RANGE = re.compile(r"(\d*)\s*:\s*(\d*)\s*(?::\s*(\d*))?")
_LIST = re.compile(r"\d+(?:\s*,\s*\d+)+")


def parse_ranks(text: str) -> RanksType:
    """Parse the text inside upstream's ``ranks(...)``. Raises ``BadRanks`` for other text."""
    text = text.strip()
    if "=" not in text:
        return _plain(text, text)
    if not text.isascii():
        raise BadRanks(_expected(text))
    return _dims(text, _strict)


def parse_set(text: str) -> RanksType:
    """Parse a set of ranks as people write it: in upstream's grammar, or as ``0-3,7`` or ``all``.

    Each form may also be given by dimension, such as ``a=0-3``. Raises ``BadRanks`` for other text.
    """
    text = text.strip()
    if text.startswith("ranks(") and text.endswith(")"):
        return parse_ranks(text[len("ranks(") : -1])
    if text in ("all", "*"):
        return range(0, sys.maxsize)
    return _dims(text, _loose_in_brackets) if "=" in text else _loose(text, text)


def _expected(text: str) -> str:
    shown = repr(text) if text else "nothing"
    return (
        f"{shown} names no ranks: write 3, or 0,1,2, or 0:8:2, or dim=0:4,other=(1,2), "
        "without negative numbers and without a comma at the end"
    )


def _dims(text: str, parse: Callable[[str, str], _OneDim]) -> dict[str, _OneDim]:
    """Parse sets by dimension, such as ``a=0-3,7,b=1``.

    ``parse`` gets the set of one dimension, and the whole text for its error.
    """
    ranks_by_dim = {}
    for part in re.split(r",\s*(?=[A-Za-z_]\w*\s*=)", text):
        name, _, value = part.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
            raise BadRanks(_expected(text))
        ranks_by_dim[name.strip()] = parse(value.strip(), text)
    return ranks_by_dim


def _strict(text: str, whole: str) -> _OneDim:
    """Parse the set of one dimension in upstream's grammar: a list of ranks must have round
    brackets, and anything else must have none. ``whole`` is the whole text, for the error.
    """
    is_list = text.startswith("(") and text.endswith(")")
    ranks = _plain(text[1:-1].strip() if is_list else text, whole)
    if isinstance(ranks, list) != is_list:
        raise BadRanks(_expected(whole))
    return ranks


def _plain(text: str, whole: str) -> _OneDim:
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if _LIST.fullmatch(text):
        return [int(number) for number in text.split(",")]
    return _range(text, whole)


def _range(text: str, whole: str) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise BadRanks(_expected(whole))
    start, stop, step = match.groups()
    if step and int(step) == 0:
        raise BadRanks(f"{text!r} has a step of 0")
    return range(int(start or 0), int(stop) if stop else sys.maxsize, int(step or 1))


def _loose_in_brackets(text: str, whole: str) -> _OneDim:
    return _loose(text.removeprefix("(").removesuffix(")"), whole)


def _loose(text: str, whole: str) -> _OneDim:
    if ":" in text:
        return _range(text, whole)
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        if match is None:
            raise BadRanks(_expected(whole))
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 1_000_000:
            raise BadRanks(f"{part.strip()!r} is no range of ranks")
        ranks.extend(range(first, last + 1))
    return ranks[0] if len(ranks) == 1 else ranks


def is_in(
    wanted: RanksType, rank: int, labels: Sequence[str] = (), sizes: Sequence[int] = ()
) -> bool:
    """Return whether the set contains a rank of a mesh with these dimensions."""
    if isinstance(wanted, int):
        return rank == wanted
    if not isinstance(wanted, dict):
        return rank in wanted
    point = coordinates(rank, labels, sizes)
    return all(name in point and is_in(choice, point[name]) for name, choice in wanted.items())


def coordinates(rank: int, labels: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Return the coordinates of a rank in a mesh whose last dimension counts fastest."""
    by_label = {}
    for label, size in zip(reversed(labels), reversed(sizes), strict=True):
        rank, by_label[label] = divmod(rank, size)
    return {label: by_label[label] for label in labels}


def in_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as text such as ``0-3,7``, which ``parse_set`` can read."""
    return ",".join(ranges_of(ranks))


def unknown_dims(wanted: RanksType, sizes: Mapping[str, int]) -> list[str]:
    """Return the dimensions that the set names but a mesh with these ``sizes`` does not have. Empty
    if the set names no dimension.
    """
    return [name for name in wanted if name not in sizes] if isinstance(wanted, dict) else []
