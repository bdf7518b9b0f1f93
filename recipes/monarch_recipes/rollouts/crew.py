"""Actors that are replaced one by one when their processes die. Their calls are repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from monarch.actor import Future, HostMesh, ProcMesh
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
    """``num`` actors of one kind, each alone in a process, spread over the hosts.

    ``make`` spawns the actor on its proc. A dead member is replaced when its answer is asked for,
    and the call is sent again. So a call may run twice.
    """

    def __init__(
        self, hosts: HostMesh, name: str, num: int, make: Callable[[ProcMesh], Any],
        record: Record, *, preload: Sequence[str],
    ) -> None:  # fmt: skip
        self.name = name
        self._hosts = hosts.flatten("hosts")
        self._make = make
        self._record = record
        self._preload = tuple(preload)
        self._num_deaths = [0] * num  # in a row
        self._procs: list[ProcMesh] = [self._spawned(number) for number in range(num)]
        self._actors = [make(procs) for procs in self._procs]

    def __len__(self) -> int:
        return len(self._procs)

    def ask(self, number: int, method: str, *args: Any) -> CrewCall[Any]:
        """Call the method of a member without waiting for its answer."""
        return CrewCall(self, number, method, args)

    def move(self, hosts: HostMesh) -> None:
        """Restart members that die from now on on ``hosts``."""
        self._hosts = hosts.flatten("hosts")

    def close(self) -> None:
        """End the processes of all members."""
        for procs in self._procs:
            self._end(procs)

    def replace(self, number: int, why: str) -> None:
        """Start a new process for a member, and record why.

        Raises RanksLost if its host is lost, and RunFailed if it died more than five times in a
        row.
        """
        self._num_deaths[number] += 1
        who = f"{self.name} {number}"
        self._record.event("died", f"{who} died: {why}", member=who)
        if self._num_deaths[number] > _MOST_DEATHS:
            raise RunFailed(f"{who} died {self._num_deaths[number]} times in a row: {why}")
        try:
            self._host_of(number).initialized.get(timeout=_HOST_SECONDS)
        except (MonarchError, TimeoutError) as error:
            self._num_deaths[number] = 0
            raise RanksLost("died", f"the host of {who} is lost: {error}") from error
        self._end(self._procs[number])
        self._procs[number] = self._spawned(number)
        self._actors[number] = self._make(self._procs[number])
        self._record.event("respawned", f"{who} has a new process", member=who)

    def _host_of(self, number: int) -> HostMesh:
        return self._hosts.slice(hosts=number % len(self._hosts))

    def _spawned(self, number: int) -> ProcMesh:
        host = self._host_of(number)
        return host.spawn_procs({"procs": 1}, name=f"{self.name}_{number}", preload=self._preload)

    def _end(self, procs: ProcMesh) -> None:
        brief = configured(stop_timeout_seconds=_END_SECONDS, cleanup_timeout_seconds=_END_SECONDS)
        with brief:
            try:
                procs.stop().get(timeout=10 * _END_SECONDS)
            except (SupervisionError, ActorError, TimeoutError):
                pass  # The process is gone already, or is being ended.

    def _sent(self, number: int, method: str, args: tuple[Any, ...]) -> Future[Any]:
        sent: Future[Any] = getattr(self._actors[number], method).call_one(*args)
        return sent

    def _answered(self, number: int) -> None:
        self._num_deaths[number] = 0


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
            self._future = self._crew._sent(self.number, self._method, self._args)
        except SupervisionError:  # The member is dead already: `get` replaces it.
            self._future = None

    def done(self) -> bool:
        """Return whether there is an answer or an error."""
        return self._future is not None and self._future.done()

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
                self._crew._answered(self.number)
                return answer
