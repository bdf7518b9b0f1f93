"""Allocations whose hosts a scheduler places, and places again where they are lost."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from monarch.errors import JobError
from monarch.job.bundle.bundle_offer import bring_bundles
from monarch.job.job import JobState, JobTrait
from monarch.job.kinds.remote import RemoteJob
from monarch.runtime.client_agent import client
from monarch.runtime.uninterrupted import Uninterrupted
from monarch_sync.words import counted

Self = TypeVar("Self", bound="ScheduledJob")

SHORTEST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 2.0
_UP_SECONDS = 120.0


class PlacedHost(NamedTuple):
    """A host agent where its scheduler has placed it. ``name`` is the scheduler's for the place,
    and stays with it; ``url`` may change."""

    mesh: str
    name: str
    url: str


class ScheduledJob(RemoteJob):
    """Subclasses order hosts in ``_create``, and say where they are in ``_place``.

    It runs for as long as the scheduler keeps it: a host that is lost is its business, and comes
    again under its name. ``_KEPT`` names the attributes that make a job what it is; its constructor
    takes them, and ``meshes``.
    """

    _KEPT: tuple[str, ...] = ()

    def __init__(
        self, meshes: Mapping[str, int], env: Mapping[str, str] | None, preload: Sequence[str]
    ) -> None:
        super().__init__(preload)
        self._meshes: dict[str, int] = {}
        for name, num_hosts in meshes.items():
            self._add(name, num_hosts)
        self.env = dict(env or {})
        self._hosts: list[PlacedHost] = []
        self.replaced: dict[str, str] = {}
        """By the last `repair`: the names of hosts that took the places of others, and theirs."""
        self._has_been_up = False  # All have answered: one that fails now is lost, not wrong.

    def _add(self, name: str, num_hosts: int) -> None:
        """Raises ``ValueError`` for a name that is taken, or no host."""
        if name in self._meshes:
            raise ValueError(f"there is a mesh {name!r} already")
        if num_hosts < 1:
            raise ValueError(f"mesh {name!r} needs at least one host, got {num_hosts}")
        self._meshes[name] = num_hosts

    @property
    def meshes(self) -> dict[str, int]:
        return dict(self._meshes)

    @property
    def hosts(self) -> Sequence[PlacedHost]:
        return self._hosts

    @property
    def num_hosts(self) -> int:
        return sum(self._meshes.values())

    @abstractmethod
    def _place(self) -> list[PlacedHost]:
        """Where the hosts are, mesh by mesh, once all have a place. Raises ``JobError`` in the
        scheduler's words where that will never be."""

    @abstractmethod
    def _is_kept(self) -> bool:
        """Whether the scheduler still has the job."""

    @abstractmethod
    def _title(self) -> str:
        """The job, as its scheduler calls it."""

    def _waits_for(self) -> str:
        title = self._title() if self._is_asked_for() else f"a {self.kind} job"
        return f"{counted(self.num_hosts, 'host')} of {title}"

    def _is_asked_for(self) -> bool:
        """Whether the scheduler has been asked for it, so that it has a name."""
        return any(self._placement().values())

    def _why_over(self) -> str:
        """Why the scheduler does not have it any more."""
        return f"{self._title()} has ended"

    def _last_words(self) -> str:
        """The ends of what its hosts printed, on lines of their own, as far as that is known."""
        return ""

    def _slots(self) -> list[str]:
        """The mesh of each host."""
        return [mesh for mesh, num_hosts in self._meshes.items() for _ in range(num_hosts)]

    def _state(self) -> JobState:
        """Waits until all hosts have a place, and their agents answer."""
        before = self.urls()
        self._wait_for_agents()
        if self.urls() != before and self._state_path is not None:
            self.dump(self._state_path)
        return super()._state()

    def _wait_for_agents(self) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            # Each time: a host that is lost meanwhile may come up elsewhere.
            self._hosts = self._place()
            self._bring_bundles()
            found = self.ask(self.urls())
            silent = {url: told.error for url, told in found.items() if told.error}
            if not silent:
                self._has_been_up = True
                return
            if time.monotonic() > deadline:
                names = self.names_by_url()
                told = "\n".join(f"{names[url]} at {url}: {why}" for url, why in silent.items())
                raise JobError(f"{self._title()} runs, but\n{told}{self._last_words()}")
            time.sleep(SHORTEST_LOOK_SECONDS)

    def _bring_bundles(self) -> None:
        """Brings bundles to hosts whose Python has no monarch. Hosts are asked after that: each has
        ours."""
        self._enter()
        bring_bundles(self.urls(), self._secret, client().node.gateway)

    def repair(self) -> list[str]:
        """Wait for the scheduler to bring lost hosts up again."""
        gone = set(self.ended())
        before = {host.name: host.url for host in self._hosts}
        names = list(before)
        if not self._is_kept():
            raise JobError(self._why_over())
        self._wait_for_agents()
        pairs = zip((host.name for host in self._hosts), names, strict=False)
        self.replaced = {now: was for now, was in pairs if now != was}
        with Uninterrupted():
            if self._state_path is not None:
                self.dump(self._state_path)
        return [
            host.name for host in self._hosts
            if host.url in gone or before.get(host.name) != host.url
        ]  # fmt: skip

    def is_whole(self) -> bool:
        return self.is_running() and not self._has_moved() and not self.ended()

    def _has_moved(self) -> bool:
        """Whether the scheduler has a host elsewhere, or nowhere, by now: where its machine is
        gone, no refusal comes that would tell."""
        return False

    def _is_running(self) -> bool:
        return self._is_kept()

    def running_urls(self) -> list[str]:
        return super().running_urls() if self._is_kept() else []

    def why_ended(self) -> str:
        return super().why_ended() if self._is_kept() else self._why_over()

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, type(self)) and self._wanted() == spec._wanted()

    def _wanted(self) -> dict[str, Any]:
        """All that makes the job what it is, as JSON data."""
        kept = {name: getattr(self, name) for name in (*self._KEPT, "env", "preload")}
        return {"meshes": self.meshes} | kept

    def _placement(self) -> dict[str, Any]:
        """How its scheduler knows it, as JSON data: attributes."""
        return {}

    def _to_data(self) -> dict[str, Any]:
        return {
            "wanted": self._wanted(),
            "secret": self._secret.hex(),
            "hosts": [host._asdict() for host in self._hosts],
            "placement": self._placement(),
        }

    @classmethod
    def _made_of(cls: type[Self], wanted: dict[str, Any]) -> Self:
        return cls(**wanted)

    @classmethod
    def _from_data(cls: type[Self], data: dict[str, Any]) -> Self:
        job = cls._made_of(dict(data["wanted"]))
        job._secret = bytes.fromhex(data["secret"])
        job._hosts = [PlacedHost(**host) for host in data["hosts"]]
        job._has_been_up = bool(job._hosts)
        vars(job).update(data["placement"])
        return job
