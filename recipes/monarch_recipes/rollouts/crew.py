"""Actors that are replaced one by one when their processes die. Their calls are repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from monarch.actor import Actor, Future, HostMesh, ProcMesh
from monarch.config import configured
from monarch.errors import ActorError, MonarchError, SupervisionError
from monarch.runs import Record
from monarch.runs.recover.ranks import RunFailed
from monarch.runs.recover.recovery import RanksLost
from monarch_recipes.rollouts.judging import RewardStuck

T = TypeVar("T")

_MOST_DEATHS = 5
_END_SECONDS = 1.0
_HOST_SECONDS = 30.0  # for a host that has just started


class Crew:
    """``num`` actors of the class ``actor``, each alone in a process, spread over the hosts.

    A dead member is replaced when its answer is asked for, and the call is sent again. So a call
    may run twice.
    """

    def __init__(
        self,
        hosts: HostMesh,
        name: str,
        num: int,
        actor: type[Actor],
        args: tuple[Any, ...],
        *,
        record: Record,
        preload: Sequence[str],
    ) -> None:
        self.name = name
        self._hosts = hosts.flatten("hosts")
        self._actor = actor
        self._args = args  # of the actor's constructor
        self._record = record
        self._preload = tuple(preload)
        #: How often each member died since it last answered.
        self._num_deaths = [0] * num
        #: The process of each member, and the actor in it.
        self._members = [self._spawned(number) for number in range(num)]

    def __len__(self) -> int:
        return len(self._members)

    def ask(self, number: int, method: str, *args: Any) -> CrewCall[Any]:
        """Call the method of a member, and return the call without waiting for its answer."""
        return CrewCall(self, number, method, args)

    def move(self, hosts: HostMesh) -> None:
        """Use ``hosts`` for all members that are restarted after this call."""
        self._hosts = hosts.flatten("hosts")

    def close(self) -> None:
        """End the processes of all members."""
        for procs, _ in self._members:
            self._end(procs)

    def replace(self, number: int, why: str) -> None:
        """Start a new process for a member, and record why.

        Raises RanksLost if its host is lost, and RunFailed if it died more than five times in a
        row.
        """
        self._num_deaths[number] += 1
        member = f"{self.name} {number}"
        self._record.event("died", f"{member} died: {why}", member=member)
        if self._num_deaths[number] > _MOST_DEATHS:
            raise RunFailed(f"{member} died {self._num_deaths[number]} times in a row: {why}")
        try:
            self._host_of(number).initialized.get(timeout=_HOST_SECONDS)
        except (MonarchError, TimeoutError) as error:
            self._num_deaths[number] = 0
            raise RanksLost("died", f"the host of {member} is lost: {error}") from error
        self._end(self._members[number][0])
        self._members[number] = self._spawned(number)
        self._record.event("respawned", f"{member} has a new process", member=member)

    def _host_of(self, number: int) -> HostMesh:
        return self._hosts.slice(hosts=number % len(self._hosts))

    def _spawned(self, number: int) -> tuple[ProcMesh, Any]:
        procs = self._host_of(number).spawn_procs(
            {"procs": 1}, name=f"{self.name}_{number}", preload=self._preload
        )
        return procs, procs.spawn(self.name, self._actor, *self._args)

    def _end(self, procs: ProcMesh) -> None:
        limits = configured(stop_timeout_seconds=_END_SECONDS, cleanup_timeout_seconds=_END_SECONDS)
        # Such an error means that the process is gone already, or is being ended.
        with limits, contextlib.suppress(SupervisionError, ActorError, TimeoutError):
            procs.stop().get(timeout=10 * _END_SECONDS)


class CrewCall(Generic[T]):
    """A call of a member, until its answer has been taken with `get`."""

    def __init__(self, crew: Crew, number: int, method: str, args: tuple[Any, ...]) -> None:
        self.number = number
        self._crew = crew
        self._method = method
        self._args = args
        self._future: Future[T] | None = None
        self._send()

    def _send(self) -> None:
        try:
            _, actor = self._crew._members[self.number]
            self._future = getattr(actor, self._method).call_one(*self._args)
        except SupervisionError:  # The member is dead already: `get` replaces it.
            self._future = None

    def get(self, timeout: float | None = None) -> T:
        """Return the answer. If the member died, replace it and send the call again.

        Raises what the endpoint raised, TimeoutError after ``timeout`` seconds, RanksLost if the
        member's host is lost, and RunFailed if the member dies again and again.
        """
        while True:
            try:
                if self._future is None:
                    raise SupervisionError(f"{self._crew.name} {self.number} had died before")
                answer = self._future.get(timeout=timeout)
            except SupervisionError as error:
                why = error.failure.root_cause.reason if error.failure is not None else str(error)
                self._crew.replace(self.number, why.partition("\n")[0])
                self._send()
            except ActorError as error:
                if isinstance(error.exception, RewardStuck):
                    self._crew.replace(self.number, str(error.exception))
                raise error.exception from None
            else:
                self._crew._num_deaths[self.number] = 0
                return answer
