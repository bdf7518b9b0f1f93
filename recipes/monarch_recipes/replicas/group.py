"""One replica group: its processes and its state."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch.actor import Actor, HostMesh, ProcMesh
from monarch.errors import MonarchError, SupervisionError
from monarch.runs.hold.trial import Trial
from monarch.runs.recover.restarts import Restarts
from monarch.runs.recover.witness import Witness
from monarch_recipes.replicas.messages import Seat
from monarch_recipes.replicas.placement import ENVIRONMENT, PRELOAD, GroupPlace
from monarch_recipes.replicas.torchft_cures import Bell


class GroupLost(Exception):
    """A group cannot continue and must be started again.

    ``details`` has the stack of each of its ranks, if it hangs.
    """

    def __init__(self, why: str, details: str = "") -> None:
        super().__init__(why)
        self.details = details


class LighthouseOutOfReach(GroupLost):
    """A group could not reach our lighthouse, which may have died without our notice."""


class Disconnected(Exception):
    """The lighthouse has died; the group must join the next one."""


class GroupLate(Exception):
    """A group is ready, but the other groups have finished."""


@dataclass
class Group:
    """One replica group, dead or alive.

    Each lighthouse has a number, by which a group knows the lighthouse that it has joined.
    """

    number: int
    place: GroupPlace
    restarts: Restarts
    #: Its processes, and the actors in each of them; None if they are not started or lost.
    procs: ProcMesh | None = None
    trainers: Any = None
    bells: Any = None
    witnesses: Any = None
    trials: Any = None
    #: The number of the lighthouse at its last start or join.
    lighthouse_number: int = 0
    #: Whether its model is built, on ``gpus``, one for each rank.
    is_set_up: bool = False
    gpus: tuple[str, ...] = ()
    #: The number of the lighthouse that knows it; None before it has joined one.
    joined: int | None = None
    #: Whether it takes part in steps, or will as soon as there is a lighthouse.
    is_training: bool = False
    #: The number of groups that were at the lighthouse when it joined, for its first step there.
    num_met: int = 1
    #: Whether it has made the last step of the run.
    has_finished: bool = False
    #: Whether it is not started again.
    is_given_up: bool = False
    num_starts: int = 0
    #: Its restarts since it committed a step.
    num_vain_restarts: int = 0
    #: Why it was lost last; "" if it never was.
    lost_by: str = ""
    #: The last committed step that is known.
    step: int = 0
    #: The checkpoint that its processes have loaded.
    resumed_from: Path | None = None
    #: Whether its present processes have committed a step.
    has_stepped: bool = False
    #: How its parameters differ from those of other groups; None if they do not.
    accused_of: str | None = None
    #: Since when others are so far ahead that it cannot take part; None if they are not.
    ahead_since: float | None = None
    #: When its next step was last discarded; None if it was not.
    discarded_at: float | None = None
    #: What it does, in words, and since when, by `time.monotonic`; "" while it trains.
    doing: str = ""
    doing_since: float = field(default_factory=time.monotonic)

    def does(self, doing: str) -> None:
        """Set what the group does now, for people who ask why nothing moves."""
        if doing != self.doing:
            self.doing, self.doing_since = doing, time.monotonic()

    @property
    def name(self) -> str:
        """The group's name in messages."""
        return f"group {self.number}"

    def spawn(
        self,
        hosts: HostMesh,
        num_groups: int,
        trainer_class: type[Actor],
        config: Any,
        checkpoint_dir: Path,
        *,
        copies_of: str,
        num_procs_here: int,
    ) -> None:
        """Start new processes with a trainer each, on the group's part of ``hosts``.

        Their copies in the host's memory belong to the owner ``copies_of``. ``num_procs_here`` is
        the number of procs of all groups on the fullest host.
        """
        place = self.place
        self.num_starts += 1
        self.procs = self.hosts_of(hosts).spawn_procs(
            {"procs": place.procs_per_host},
            name=f"group{self.number}",
            env=ENVIRONMENT,
            preload=PRELOAD,
        )
        procs = self.procs.flatten("ranks")
        seats = [
            Seat(
                group=self.number,
                rank=rank,
                num_groups=num_groups,
                num_ranks=len(procs),
                slot=place.first_slot + rank % place.procs_per_host,
            )
            for rank in range(len(procs))
        ]
        self.trainers = procs.spawn(
            f"trainer{self.number}", trainer_class, config, checkpoint_dir, seats
        )
        self.bells = procs.spawn(f"bell{self.number}", Bell)
        self.witnesses = procs.spawn(f"witness{self.number}", Witness)
        # A step is committed by all groups or by none, so a trial needs no copy to go back to.
        self.trials = procs.spawn(
            f"trial{self.number}",
            Trial,
            self.trainers._ref.uid,
            {},
            keeps=False,
            memory=copies_of,
            num_ranks_here=num_procs_here,
        )

    def hosts_of(self, hosts: HostMesh) -> HostMesh:
        """Return the part of ``hosts`` that this group is on."""
        return hosts.slice(hosts=slice(self.place.hosts.start, self.place.hosts.stop))

    def let_go(self) -> ProcMesh | None:
        """Reset the group to the state before its start.

        Return its processes for the caller to end; None if it has none.
        """
        procs, self.procs = self.procs, None
        self.trainers = self.bells = self.witnesses = self.trials = None
        self.is_set_up = self.is_training = self.has_finished = self.has_stepped = False
        self.joined, self.gpus = None, ()
        self.accused_of = self.ahead_since = self.discarded_at = None
        return procs


def first_cause(error: MonarchError) -> str:
    """Return the cause of an error in one line, without the name of the actor that failed."""
    failure = error.failure if isinstance(error, SupervisionError) else None
    why = str(error) if failure is None else failure.root_cause.reason
    first, *rest = why.strip().splitlines()
    # The error is the last line of a traceback: "__init__ failed." alone does not help.
    return f"{first} {rest[-1].strip()}" if rest and first.endswith("failed.") else first
