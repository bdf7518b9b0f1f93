"""How different two lines are."""

from __future__ import annotations

__all__ = ["edit_distance"]


def edit_distance(one: str, other: str) -> int:
    """How many characters to insert, delete or replace to turn ``one`` into ``other``.

    What the two begin and end with in common costs nothing; the rest is done for a whole column
    at once, in the bits of one integer (Myers 1999, with Hyyro's correction).
    """
    one, other = _strip_common(one, other)
    if not one or not other:
        return len(one) + len(other)
    where: dict[str, int] = {}
    for position, character in enumerate(one):
        where[character] = where.get(character, 0) | 1 << position
    mask = (1 << len(one)) - 1
    last = 1 << (len(one) - 1)
    up, down, distance = mask, 0, len(one)
    for character in other:
        match = where.get(character, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right, left = down | (~(diagonal | up) & mask), up & diagonal
        if right & last:
            distance += 1
        elif left & last:
            distance -= 1
        right = (right << 1) | 1
        left <<= 1
        up = (left | ~(diagonal | right)) & mask
        down = diagonal & right & mask
    return distance


def _strip_common(one: str, other: str) -> tuple[str, str]:
    """What is left of two texts without their common beginning and end."""
    start = _num_common(one, other)
    one, other = one[start:], other[start:]
    end = _num_common(one[::-1], other[::-1])
    return one[: len(one) - end], other[: len(other) - end]


def _num_common(one: str, other: str) -> int:
    """The length of the common beginning: by halving, as comparing slices is what is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
