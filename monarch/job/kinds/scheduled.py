"""Allocations whose hosts a scheduler places, and places again if they are lost."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from monarch.errors import JobError
from monarch.job.bundle.bundle_offer import bring_bundles
from monarch.job.job import JobState, JobTrait
from monarch.job.kinds.remote import RemoteJob
from monarch.runtime.client_agent import client
from monarch.runtime.uninterrupted import Uninterrupted
from monarch_sync.words import counted

Self = TypeVar("Self", bound="ScheduledJob")
T = TypeVar("T")
_log = logging.getLogger(__name__)

SHORTEST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 2.0
_UP_SECONDS = 120.0


def wait_for_place(look: Callable[[], tuple[T, str]], timeout: float | None) -> T:
    """Return the result of ``look`` as soon as nothing is missing.

    ``look`` returns a result and "", or any result and a description of what is missing. The
    description is logged when it changes. After ``timeout`` seconds (``None``: never) it becomes a
    ``JobError``.
    """
    began, pause, logged = time.monotonic(), SHORTEST_LOOK_SECONDS, ""
    while True:
        result, waiting = look()
        if not waiting:
            return result
        waited = time.monotonic() - began
        if timeout is not None and waited > timeout:
            raise JobError(f"{waiting} after {timeout:.0f} s: it is given up")
        if waited > LONGEST_LOOK_SECONDS and logged != waiting:
            logged = waiting
            _log.warning("%s", waiting)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK_SECONDS / 2)


class PlacedHost(NamedTuple):
    """A host agent where its scheduler has placed it.

    ``name`` is the scheduler's name and does not change; ``url`` may change.
    """

    mesh: str
    name: str
    url: str


class ScheduledJob(RemoteJob):
    """A job whose hosts a scheduler places.

    Subclasses order hosts in ``_create``, and return where they are in ``_place``. The job runs for
    as long as the scheduler keeps it; the scheduler replaces a lost host under its name. ``_KEPT``
    names the attributes that define a job; its constructor takes them, and ``meshes``.
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
        #: The new hosts of the last `repair`, each with the one that it replaces, by name.
        self.replaced: dict[str, str] = {}
        #: Whether all hosts have answered before: if one fails now, the job is not to blame.
        self._has_been_up = False

    def _add(self, name: str, num_hosts: int) -> None:
        """Add a mesh. Raises ``ValueError`` for a name that is taken, or without hosts."""
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
        """Wait until all hosts have a place, and return them, mesh by mesh.

        Raises ``JobError`` in the scheduler's words if that can never be.
        """

    @abstractmethod
    def _is_kept(self) -> bool:
        """Whether the scheduler still has the job."""

    @abstractmethod
    def _title(self) -> str:
        """Return the scheduler's name for the job, for messages."""

    def _waits_for(self) -> str:
        is_submitted = any(self._placement().values())
        title = self._title() if is_submitted else f"a {self.kind} job"
        return f"{counted(self.num_hosts, 'host')} of {title}"

    def _why_over(self) -> str:
        """Return why the scheduler no longer has the job, as a sentence."""
        return f"{self._title()} has ended"

    def _last_words(self) -> str:
        """Return the last lines of its hosts' output, as far as they are known."""
        return ""

    def _slots(self) -> list[str]:
        """Return the mesh of each host, host by host."""
        return [mesh for mesh, num_hosts in self._meshes.items() for _ in range(num_hosts)]

    def _state(self) -> JobState:
        """Wait until all hosts have a place and their agents answer; return the hosts."""
        last_urls = self.urls()
        self._wait_for_agents()
        if self.urls() != last_urls and self._state_path is not None:
            self.dump(self._state_path)
        return super()._state()

    def _wait_for_agents(self) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            # Each time: a host that is lost meanwhile may be started elsewhere.
            self._hosts = self._place()
            self._enter()
            # A host whose Python has no monarch cannot answer before it has its bundle.
            bring_bundles(self.urls(), self._secret, client().node.gateway)
            replies = self.ask(self.urls())
            errors = {url: reply.error for url, reply in replies.items() if reply.error}
            if not errors:
                self._has_been_up = True
                return
            if time.monotonic() > deadline:
                names = self.names_by_url()
                lines = "\n".join(f"{names[url]} at {url}: {x}" for url, x in errors.items())
                raise JobError(f"{self._title()} runs, but\n{lines}{self._last_words()}")
            time.sleep(SHORTEST_LOOK_SECONDS)

    def repair(self) -> list[str]:
        """Wait until the scheduler has replaced all lost hosts; return their names.

        Raises ``JobError`` if the scheduler no longer has the job.
        """
        ended = set(self.ended())
        old_urls = {host.name: host.url for host in self._hosts}
        if not self._is_kept():
            raise JobError(self._why_over())
        self._wait_for_agents()
        pairs = zip((host.name for host in self._hosts), old_urls, strict=False)
        self.replaced = {new: old for new, old in pairs if new != old}
        with Uninterrupted():
            if self._state_path is not None:
                self.dump(self._state_path)
        return [x.name for x in self._hosts if x.url in ended or old_urls.get(x.name) != x.url]

    def is_whole(self) -> bool:
        return self.is_running() and not self._has_moved() and not self.ended()

    def _has_moved(self) -> bool:
        """Whether the scheduler has moved a host away from its known place, or lost it.

        If a host's machine is gone, no refused connection shows that it has ended.
        """
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
        """Return all settings that define the job, as JSON data."""
        settings = {name: getattr(self, name) for name in (*self._KEPT, "env", "preload")}
        return {"meshes": self.meshes} | settings

    def _placement(self) -> dict[str, Any]:
        """Return the attributes by which the scheduler knows the job, as JSON data."""
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
