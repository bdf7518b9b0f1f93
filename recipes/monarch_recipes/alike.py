"""Compares the ranks' weights and optimizer states in the client, and holds the run if they differ.

Each rank computes a fingerprint for each group of ranks that should be equal: with data parallelism
all ranks are one group; with sharded weights, the ranks that have the same shard. Results of steps
contain a short digest of it. If digests differ, the client asks all ranks for the whole
fingerprints, which name the parameters that differ. Then the run holds until all ranks take the
state of one rank, or load the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from monarch.runs import Record
from monarch.runs.hold.holding import Holding
from monarch_recipes.fingerprint import RankDifference, Sums, differences
from monarch_sync.words import counted

Digests = Mapping[str, str]
"""A rank's digest for each group of ranks that it belongs to."""
Fingerprint = Mapping[str, Sums]
"""A rank's fingerprint for each group of ranks: a number for each tensor, by name."""

ONLY_WEIGHTS = "weights"
"""The key of a digest that covers the weights, but not the optimizer's state."""

_NUM_NOTED = 100


class Alike:
    """Compares the ranks of a run, and holds the run if they differ.

    ``ask`` returns the fingerprint of each rank; it must work without a process group. ``take``
    copies the state of one rank to all ranks.
    """

    def __init__(
        self,
        record: Record,
        holding: Holding,
        ask: Callable[[], Mapping[int, Fingerprint]],
        take: Callable[[int], object],
    ) -> None:
        #: The last step at which all ranks were equal.
        self.agreed_step: int | None = None
        #: Whether some digests differed, and the ranks were not asked for the tensors yet.
        self.is_suspected = False
        self._record = record
        self._holding = holding
        self._ask = ask
        self._take = take
        #: The parameters that no rank uses.
        self._unused: tuple[str, ...] = ()

    def look(self, step: int, by_rank: Iterable[Digests]) -> None:
        """Compare the digests that came with the results of a step. If they differ, call `compare`.

        If ranks already work on the next step, `compare` is called after that one.
        """
        by_group: dict[str, set[str]] = {}
        for rank_digests in by_rank:
            for group, digest in rank_digests.items():
                by_group.setdefault(group, set()).add(digest)
        if any(len(digests) > 1 for digests in by_group.values()):
            self.is_suspected = True
        elif by_group.keys() - {ONLY_WEIGHTS} and not self.is_suspected:
            self.agreed_step = step
        # Ranks that make the next step already are asked after it.
        if self.is_suspected and not self._holding.is_ahead:
            self.compare(step)

    def compare(self, step: int) -> None:
        """Ask all ranks for their fingerprints; while some differ, hold the run."""
        while ranks := self._differences():
            self.is_suspected = True
            first = ranks[0]
            text = self._text_of(ranks)
            self._record.note(
                "apart",
                text,
                step=step,
                agreed_step=self.agreed_step,
                ranks=sorted({difference.rank for difference in ranks}),
                parameters=list(first.names[:_NUM_NOTED]),
            )
            # Raises if all ranks begin again from the checkpoint.
            self._holding.apart(f"the comparison after step {step}", text, first.right)
            self._take(first.right)
            self._record.event(
                "alike", f"all ranks have the state of rank {first.right} now", step=step
            )
        self.is_suspected = False
        self.agreed_step = step
        self._holding.together()

    def difference(self) -> str:
        """Return how the ranks differ now, as text; "" if they do not differ."""
        ranks = self._differences()
        return self._text_of(ranks) if ranks else ""

    def tell_unused(self, step: int, unused: tuple[str, ...]) -> None:
        """Record which parameters no rank uses since ``step``, whenever these change."""
        if unused == self._unused:
            return
        self._unused = unused
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            text = f"from step {step}, no rank uses {unused[0]}{more}, which stay as they are"
        else:
            text = f"from step {step}, all parameters are used again"
        self._record.event("unused", text, step=step, parameters=list(unused[:_NUM_NOTED]))

    def _differences(self) -> list[RankDifference]:
        by_group: dict[str, dict[int, Sums]] = {}
        for rank, fingerprint in self._ask().items():
            for group, sums in fingerprint.items():
                by_group.setdefault(group, {})[rank] = sums
        return [rank for sums in by_group.values() for rank in differences(sums)]

    def _text_of(self, ranks: list[RankDifference]) -> str:
        num_others = len({difference.rank for difference in ranks}) - 1
        also = f", and {counted(num_others, 'other rank')} from theirs" if num_others else ""
        since = "" if self.agreed_step is None else f", since a step after {self.agreed_step}"
        return f"{ranks[0]}{also}{since}"
