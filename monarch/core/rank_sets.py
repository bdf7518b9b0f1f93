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
from collections.abc import Iterable, Mapping, Sequence

from monarch.mesh.ranges import ranges_of

RanksType = int | list[int] | range | dict[str, range | list[int] | int]


class BadRanks(ValueError):
    """A text is not a set of ranks. The message says what was expected."""


_RANGE = re.compile(r"(\d*)\s*:\s*(\d*)\s*(?::\s*(\d*))?")
_LIST = re.compile(r"\d+(?:\s*,\s*\d+)+")
_DIM = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\((?P<list>[^()]*)\)|[^,()]*)\s*", re.ASCII)


def parse_ranks(text: str) -> RanksType:
    """Parse the text inside upstream's ``ranks(...)``. Raises ``BadRanks``."""
    text = text.strip()
    if "=" in text:
        return _dims(text)
    ranks = _plain(text)
    if ranks is None:
        raise BadRanks(_expected(text))
    return ranks


def _expected(text: str) -> str:
    shown = repr(text) if text else "nothing"
    return (
        f"{shown} names no ranks: write 3, or 0,1,2, or 0:8:2, or dim=0:4,other=(1,2), "
        "without negative numbers and without a comma at the end"
    )


def _plain(text: str) -> int | list[int] | range | None:
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if _LIST.fullmatch(text):
        return [int(number) for number in text.split(",")]
    return _range(text)


def _range(text: str) -> range | None:
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    start, stop, step = match.groups()
    if step and int(step) == 0:
        raise BadRanks(f"{text!r} has a step of 0")
    return range(int(start or 0), int(stop) if stop else sys.maxsize, int(step or 1))


def _dims(text: str) -> dict[str, range | list[int] | int]:
    ranks_by_dim: dict[str, range | list[int] | int] = {}
    position = 0
    while True:
        match = _DIM.match(text, position)
        if match is None:
            raise BadRanks(_expected(text))
        listed = match["list"]
        value = _plain((match[2] if listed is None else listed).strip())
        if value is None or isinstance(value, list) != (listed is not None):
            raise BadRanks(_expected(text))
        ranks_by_dim[match[1]] = value
        position = match.end()
        if position == len(text):
            return ranks_by_dim
        if text[position] != ",":
            raise BadRanks(_expected(text))
        position = re.compile(r"\s*").match(text, position + 1).end()  # type: ignore[union-attr]


def parse_set(text: str) -> RanksType:
    """Parse a set of ranks as people write it: upstream's grammar, and ``0-3,7``, ``all``, also for
    dimensions.

    Raises ``BadRanks``.
    """
    text = text.strip()
    if text.startswith("ranks(") and text.endswith(")"):
        return parse_ranks(text[len("ranks(") : -1])
    if text in ("all", "*"):
        return range(0, sys.maxsize)
    if "=" not in text:
        return _loose(text, text)
    ranks_by_dim: dict[str, range | list[int] | int] = {}
    # Split by dimensions: "a=0-3,7,b=1" into "a=0-3,7" and "b=1".
    for part in re.split(r",\s*(?=[A-Za-z_]\w*\s*=)", text):
        name, _, value = part.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
            raise BadRanks(_expected(text))
        ranks_by_dim[name.strip()] = _loose(value.strip().removeprefix("(").removesuffix(")"), text)
    return ranks_by_dim


def _loose(text: str, whole: str) -> int | list[int] | range:
    if ":" in text:
        found = _range(text)
        if found is None:
            raise BadRanks(_expected(whole))
        return found
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
    """Return ranks as text such as ``0-3,7``; the inverse of what users write."""
    return ",".join(ranges_of(ranks))


def unknown_dims(wanted: RanksType, sizes: Mapping[str, int]) -> list[str]:
    """Return the dimensions in the set that a mesh does not have."""
    return [name for name in wanted if name not in sizes] if isinstance(wanted, dict) else []
