"""Effects of held calls: how long clocks were stopped, and the text for the user.

Pure code: it takes holds and times as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from monarch.core.rank_sets import in_ranges
from monarch.wire.hold import HoldNote


class HeldTime:
    """The seconds during which calls were held; holds at the same time count once."""

    def __init__(self) -> None:
        self._ended_seconds = 0.0
        self._since: float | None = None

    def hold(self, is_held: bool, now: float) -> None:
        """Note that calls are held from ``now`` on or, if ``is_held`` is false, that no call is
        held any longer.
        """
        if is_held and self._since is None:
            self._since = now
        elif not is_held and self._since is not None:
            self._ended_seconds += now - self._since
            self._since = None

    @property
    def is_held(self) -> bool:
        return self._since is not None

    def seconds(self, now: float) -> float:
        """Return the total time in seconds until ``now``."""
        return self._ended_seconds + (0.0 if self._since is None else now - self._since)


def begun(holds: Iterable[HoldNote]) -> list[str]:
    """Return a sentence for each place at which calls are held: ``ddp 0-3 are held at
    breakpoint(), ...``.
    """
    at: dict[tuple[str, ...], list[HoldNote]] = {}
    for hold in holds:
        key = (hold.actor, hold.reason, hold.place, hold.function, hold.error)
        at.setdefault(key, []).append(hold)
    return [_sentence(same) for same in at.values()]


def _sentence(same: Sequence[HoldNote]) -> str:
    first = same[0]
    verb = "is" if len(same) == 1 else "are"
    reason = f"an error ({first.error})" if first.error else first.reason
    where = "" if first.reason == first.place else f", {first.place}"
    return (
        f"{named(same)} {verb} held at {reason}{where} in {first.function}. Calls to it wait, "
        "and time limits are paused; `monarch debug` opens it."
    )


def gone_on(seconds: float) -> str:
    """Return a text for people: no call is held any longer, after a pause of ``seconds``."""
    return f"no call is held any longer: time limits count again, after a pause of {seconds:.0f} s"


def all_stand(holds: Iterable[HoldNote]) -> bool:
    """Return whether all ranks of the held actors' meshes are held, so that no further rank can be
    held with them.
    """
    ranks: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for hold in holds:
        key = hold.actor, hold.mesh
        ranks.setdefault(key, set()).add(hold.rank)
        sizes[key] = math.prod(hold.sizes)
    return all(len(held) >= sizes[key] for key, held in ranks.items())


def named(holds: Sequence[HoldNote]) -> str:
    """Return the held ranks, by their actors: ``ddp 0-3,7 and loader 2``."""
    ranks: dict[str, list[int]] = {}
    for hold in holds:
        ranks.setdefault(hold.actor, []).append(hold.rank)
    return " and ".join(f"{actor} {in_ranges(of_actor)}" for actor, of_actor in ranks.items())
