"""The copies of a run's state in its hosts' memory, as the run's client sees them.

New processes continue from the newest step with enough copies. If ranks are replicas, one whole
copy is enough, and each rank's own random state is used if there is one. If each rank has its own
part of the state, a whole copy of every rank is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from monarch.actor import HostMesh
from monarch.runs.hold.state_memory import WHOLE, CopyPlace, copies_in
from monarch.runtime import process
from monarch.runtime.hosts.held_memory import find_held, let_go


@dataclass(frozen=True)
class HostCopies:
    """The copies of one step, from which a run can continue, by rank.

    ``whole`` has the complete copies. ``small`` has all copies: at least their small parts are
    valid, which are neither weights nor the optimizer's state.
    """

    step: int
    whole: Mapping[int, CopyPlace] = field(default_factory=dict)
    small: Mapping[int, CopyPlace] = field(default_factory=dict)


def newest_of(
    copies: Mapping[int, Sequence[CopyPlace]],
    num_ranks: int,
    *,
    needs_all: bool = False,
    at_least: int = 0,
) -> HostCopies | None:
    """Return the copies of the newest step that has enough whole copies; ``None`` if none has.

    One whole copy is enough, unless ``needs_all``: then each of the ``num_ranks`` needs one. Steps
    before ``at_least`` do not count.
    """
    of_step: dict[int, HostCopies] = {}
    for rank, copies_of_rank in copies.items():
        if rank >= num_ranks:
            continue
        for copy in sorted(copies_of_rank, key=lambda copy: copy.marks.number):
            step = copy.marks.step
            older = of_step.get(step, HostCopies(step))
            whole = {rank: copy} if copy.marks.stage == WHOLE else {}
            of_step[step] = HostCopies(step, {**older.whole, **whole}, {**older.small, rank: copy})
    enough = num_ranks if needs_all else 1
    steps = [step for step, of in of_step.items() if len(of.whole) >= enough and step >= at_least]
    return of_step[max(steps)] if steps else None


class RunMemory:
    """The copies in the memory of one attempt's hosts, which belong to ``owner``.

    ``needs_all``: each rank has a part of the state, so copies are used only if all ranks have one.
    ``saved_step`` returns the step of the last checkpoint: older copies are not used.
    """

    def __init__(
        self,
        owner: str,
        hosts: HostMesh,
        num_ranks: int,
        *,
        needs_all: bool = False,
        saved_step: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.owner = owner
        self._addresses = dict(enumerate(hosts._sync_hosts()))
        self._num_ranks = num_ranks
        self._needs_all = needs_all
        self._saved_step = saved_step

    @classmethod
    def new_owner(cls) -> str:
        """Return a name that no other run has."""
        return os.urandom(8).hex()

    def newest(self) -> HostCopies | None:
        """Return the copies to continue from; ``None`` unless they are newer than the last
        checkpoint."""
        node = process.current().node
        per_host = max(1, self._num_ranks // max(1, len(self._addresses)))
        copies: dict[int, list[CopyPlace]] = {}
        for number, places in find_held(node, self._addresses, self.owner).items():
            for copy in copies_in(places):
                rank = int(copy.place.name)
                if rank // per_host == number:  # A rank can read only what is on its own host.
                    copies.setdefault(rank, []).append(copy)
        # Before the first step nothing can be lost, and an edit may change what a start builds.
        least = max(1, self._saved_step() or 0)
        return newest_of(copies, self._num_ranks, needs_all=self._needs_all, at_least=least)

    def forget(self) -> None:
        """Make the hosts drop all copies."""
        let_go(process.current().node, self._addresses, self.owner)
