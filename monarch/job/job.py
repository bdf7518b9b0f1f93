"""The base of all allocations: how they are made, found again, and ended.

A job's state is data: JSON from which a later program finds the allocation again, with the secret
from which all keys are derived. It is kept in the user's own state folder and signed (`places`,
`state_folder`); at the path that names it, in a project, there is only a note for people.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import itertools
import json
import logging
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from monarch.actor import HostMesh
from monarch.errors import JobError, SupervisionError
from monarch.job.contexts import DEFAULT_JOB_PATH
from monarch.job.ended import note_end
from monarch.job.mounts import GatherMount, MountSpec, RemoteMount
from monarch.job.person_note import keep_from_git as keep_from_git
from monarch.job.person_note import remove_note, write_note
from monarch.job.places import has_state, make_record_of, record_of
from monarch.job.services import MeshAdminConfig, TelemetryConfig, start_dashboard, warn_of_missing
from monarch.job.state import JobState as JobState
from monarch.job.state import engine, visit_hosts
from monarch.job.state_folder import (
    SIGNATURE,
    NotSigned,
    read_private,
    sign,
    verified,
    write_private,
)
from monarch.job.waiting import told_if_long
from monarch.observe.profile import MeshProfile
from monarch.observe.query import QueryEngine
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.host_link import who_am_i
from monarch.runtime.uninterrupted import Uninterrupted
from monarch.wire.address import ProcAddress

Self = TypeVar("Self", bound="JobTrait")

_VERSION = 2
_PURPOSE = "job"
_log = logging.getLogger(__name__)


class JobTrait(ABC):
    """An allocation of machines.

    Subclasses define how to make the allocation, how to reach it, how to end it, and which specs it
    fits. They may define whether it still runs, and what its kept state contains: by default it is
    assumed to run, and its attributes are kept, which must then be JSON data. ``kind`` names the
    subclass in that state.
    """

    kind: ClassVar[str]
    apply_id: str | None = None
    """The allocation's own name, new for each allocation; ``None`` before the job is applied."""
    _kinds: ClassVar[dict[str, type[JobTrait]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in vars(cls):
            cls.kind = f"{cls.__module__}.{cls.__qualname__}"
        JobTrait._kinds[cls.kind] = cls

    def __init__(self) -> None:
        self.apply_id = None
        #: How the job is ended and by whom, while it is being ended, for programs that run on it.
        self.ending: dict[str, str] | None = None
        #: The project file that it was made by; "" for a job of a program.
        self.project_file = ""
        #: The applied job: this one, or an earlier one that was found; ``None`` if it is not up.
        self._running: JobTrait | None = None
        #: The record that keeps its state; ``None`` if it is not kept.
        self._state_path: Path | None = None
        #: The settings of `enable_telemetry`.
        self._telemetry: TelemetryConfig | None = None
        #: The mounts to open, and those that are open on the allocation ``_mounted_for``.
        self._mount_specs: list[MountSpec] = []
        self._mounts: list[list[RemoteMount | GatherMount]] = []
        self._mounted_for: str | None = None

    def _begin(self, client_script: str | None) -> None:  # noqa: B027  (most need none)
        """Do the slow part of making the allocation, before ``_create``.

        Unlike in ``_create``, Ctrl-C interrupts it. After that, or an error, ``_kill`` must remove
        everything that it has made.
        """

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Make the allocation; with ``client_script``, have it run that program and end."""

    @abstractmethod
    def _state(self) -> JobState:
        """Connect to the allocation and return its hosts."""

    def _is_running(self) -> bool:
        """Whether the allocation still exists, as far as is known without waiting."""
        return True

    @abstractmethod
    def _kill(self) -> None:
        """End the allocation. It may be called again."""

    def urls(self) -> list[str]:
        """Return the URLs of its host agents; none for hosts that are part of the client."""
        return []

    def visit(self, url: str) -> ProcAddress:
        """Return the host agent at ``url``, for questions, without becoming its client."""
        return client().visit(url)

    def names_by_url(self) -> dict[str, str]:
        """Return the names of its hosts, by URL.

        Empty if the job does not know them: then a lost host, which cannot be asked, has no name.
        """
        return {}

    def is_running(self) -> bool:
        """Whether the allocation still exists, and is not being ended."""
        return self.ending is None and self._is_running()

    def is_whole(self) -> bool:
        """Whether the allocation runs, and no host of it is missing."""
        return self.is_running()

    def running_urls(self) -> list[str]:
        """Return the URLs of the hosts that still run, as far as is known without waiting."""
        return self.urls() if self._is_running() else []

    def num_running(self) -> int:
        """Return how many of its hosts still run, as far as is known without waiting."""
        return len(self.running_urls())

    def repair(self) -> list[str]:
        """Restart hosts that have ended, at their addresses and with their workspaces; return their
        names.

        The other hosts go on. Raises ``JobError`` if the job cannot restart single hosts, or a host
        cannot be restarted.
        """
        raise JobError(f"a {self.kind} job cannot bring a single host up again")

    def take_ways(self, now: JobTrait) -> None:  # noqa: B027  (most have none)
        """From now on, reach the hosts by the commands of ``now``.

        ``now`` is the same job, as its author defines it today.
        """

    def why_ended(self) -> str:
        """Return the last output of hosts that have ended; "" if it is not known."""
        return ""

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Whether this allocation fits what ``spec`` asks for."""

    def _to_data(self) -> dict[str, Any]:
        """Return the JSON data from which ``_from_data`` makes the job again."""
        attributes = {name: value for name, value in vars(self).items() if name not in _NOT_KEPT}
        for name, value in attributes.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise JobError(
                    f"the state of a {self.kind} job cannot hold its {name!r}, a "
                    f"{type(value).__name__}: give the class `_to_data` and `_from_data`, or do "
                    "without keeping it: state(cached_path=None)"
                ) from None
        return {"attributes": attributes}

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> JobTrait:
        """Return the job that ``data``, which `_to_data` returned, describes."""
        job = cls.__new__(cls)
        JobTrait.__init__(job)
        vars(job).update(data["attributes"])
        return job

    def enable_telemetry(
        self: Self,
        config: TelemetryConfig | None = None,
        *,
        mesh_admin_config: MeshAdminConfig | None = None,
        **options: Any,
    ) -> Self:
        """Make this job's state answer SQL queries: ``state().query_engine_client``.

        Hosts then keep the records of their procs, also of dead ones. Raises ``TypeError`` for an
        option that ``TelemetryConfig`` does not have. ``mesh_admin_config`` has no effect.
        """
        del mesh_admin_config
        self._telemetry = config or TelemetryConfig(**options)
        return self

    def enable_admin(self: Self, config: MeshAdminConfig | None = None, **options: Any) -> Self:
        """Accept the call, with a warning: there is no admin service yet."""
        config or MeshAdminConfig(**options)
        warn_of_missing("admin service")
        return self

    def telemetry_query_client(self) -> QueryEngine:
        """Return the client that answers SQL about this job's hosts, as
        ``state().query_engine_client``.

        Raises ``RuntimeError`` if the job does not run, or without ``enable_telemetry``.
        """
        running = self._running
        if running is None or not running.is_running():
            raise RuntimeError("the job does not run: `state()`, or `apply()`, brings it up")
        self._check_telemetry("telemetry_query_client")
        return engine()

    def profile(
        self, *, on_trace_ready: Callable[[MeshProfile], object] | None = None
    ) -> MeshProfile:
        """Return a ``with`` block that records what all processes of this program do in it.

        Write the record with ``export_perfetto_trace``. Raises ``RuntimeError`` without
        ``enable_telemetry``, and before ``state()``.
        """
        self._check_telemetry("profile")
        if self._running is None:
            raise RuntimeError("the job does not run yet: call `state()` before `profile()`")
        return MeshProfile(visit_hosts, on_trace_ready)

    def _check_telemetry(self, method: str) -> None:
        if self._telemetry is None:
            raise RuntimeError(
                f"{method} needs telemetry: call `enable_telemetry()` before `state()`"
            )

    @property
    def active(self) -> bool:
        """Whether this object has been applied, or has found a running job."""
        return self._running is not None

    def apply(self, client_script: str | None = None) -> None:
        """Make the allocation, unless this object has done so already."""
        if self._running is None:
            self._bring_up(client_script, None)

    def _bring_up(self, client_script: str | None, path: Path | None) -> None:
        """Make the allocation and keep its state for ``path``; if that is interrupted, end it
        again."""
        self.apply_id = str(uuid.uuid4())
        try:
            self._begin(client_script)
            # Nobody could find, and end, an allocation that is only half made.
            with Uninterrupted():
                self._create(client_script)
                self._running = self
                if path is not None:
                    self._state_path = make_record_of(path)
                    self.dump(path)
        except BaseException as error:
            try:
                self.kill()
            except JobError as not_ended:
                raise JobError(f"{str(error) or 'interrupted'}\n{not_ended}") from error
            raise

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Return the job's hosts, ready to spawn on.

        In this order: the allocation that this object runs already; the one whose state
        ``cached_path`` names, if it still runs and fits (otherwise it is ended); else a new
        allocation. Its state is kept in your own state folder, for that path in that very folder; a
        file at the path has no effect. ``None`` keeps no state. Raises ``JobError`` for a state
        that cannot be trusted; a damaged state is replaced.
        """
        if self._running is not None:
            if self._running.is_running():
                return self._served(self._running._state())
            self.kill()
        path = Path(cached_path) if cached_path is not None else None
        earlier = None
        if path is not None and has_state(path):
            with contextlib.suppress(_Damaged):
                earlier = job_load(path)
        if earlier is not None:
            if earlier.is_running() and earlier.can_run(self):
                self._running = earlier
                self._state_path = earlier._state_path
                with told_if_long(earlier._waits_for):
                    return self._served(earlier._state())
            _end_earlier(earlier)
        with told_if_long(self._waits_for):
            self._bring_up(None, path)
            try:
                return self._served(self._state())
            except BaseException:
                self.kill()
                raise

    def _waits_for(self) -> str:
        """Return a description of what a caller waits for while the hosts start."""
        return f"the hosts of a {self.kind} job"

    def remote_mount(
        self,
        source: str | os.PathLike[str],
        mntpoint: str | None = None,
        meshes: Sequence[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
    ) -> None:
        """Make ``state()`` mirror a local folder at ``mntpoint`` [default: its own path] on the
        hosts.

        ``meshes`` chooses the hosts [default: all]. If the folder has ``python_exe``, that Python
        starts the procs.
        """
        path = Path(source).expanduser().resolve()
        mount_point = mntpoint or str(path)
        has_python = python_exe is not None and (path / python_exe).exists()
        self._mount_specs.append(
            MountSpec(
                lambda hosts: _opened(RemoteMount(hosts, path, mount_point)),
                tuple(meshes) if meshes is not None else None,
                os.path.join(mount_point, python_exe or "") if has_python else "",
            )
        )

    def gather_mount(
        self,
        remote_mount_point: str,
        local_mount_point: str,
        meshes: Sequence[str] | None = None,
    ) -> None:
        """Make ``state()`` mirror folders of the hosts in a local folder.

        Each has a subfolder there, named by its host's coordinates, such as ``hosts_0``.
        ``$SUBDIR`` in ``remote_mount_point`` is this name.
        """
        self._mount_specs.append(
            MountSpec(
                lambda hosts: GatherMount(hosts, remote_mount_point, local_mount_point),
                tuple(meshes) if meshes is not None else None,
            )
        )

    def _mount(self, hosts: dict[str, HostMesh]) -> None:
        """Open the mounts that are not open on this allocation yet."""
        apply_id = (self._running or self).apply_id
        if self._mounted_for != apply_id:
            self._unmount()
        for spec in self._mount_specs[len(self._mounts) if self._mounted_for == apply_id else 0 :]:
            self._mounts.append(spec.opened_on(hosts))
        self._mounted_for = apply_id
        for spec in self._mount_specs:
            hosts.update(spec.with_python(hosts))

    def _unmount(self) -> None:
        mounts, self._mounts, self._mounted_for = self._mounts, [], None
        for mount in itertools.chain.from_iterable(mounts):
            with contextlib.suppress(SupervisionError):  # Its hosts may be gone.
                mount.close()

    def _served(self, state: JobState) -> JobState:
        if self._mount_specs:
            self._mount(state._hosts)
        if self._telemetry is not None:
            job = self._running or self
            state.serve(self._telemetry, lambda port: start_dashboard(job.dumps().decode(), port))
        return state

    def kill(self) -> None:
        """End this object's allocation, and remove its state."""
        self._end("ended")

    def _end(self, how: str) -> None:
        """End the allocation; ``how`` is "ended", or "replaced" if another one takes over its
        state."""
        job, path = self._running or self, self._state_path
        self._unmount()
        with Uninterrupted():
            if path is not None and not _is_record_of(job, path):
                path = None
            if path is not None:
                # First: a program on it sees its hosts end, and reads the reason there.
                job.ending = {"how": how, "by": who_am_i()}
                with contextlib.suppress(OSError):
                    job.dump(path)
            try:
                job._kill()
            except JobError:
                if path is not None:
                    with contextlib.suppress(OSError):
                        job.dump(path)  # With that, the remaining hosts can still be ended.
                raise
            if path is not None and how == "ended":
                note_end(path, job.apply_id, job.ending)
                path.unlink(missing_ok=True)
                remove_note(path, job.apply_id)
            job.ending = self._running = None

    def _noted(self) -> JobTrait | None:
        """Return the job from its kept state; ``None`` if that is gone, or of another
        allocation."""
        with contextlib.suppress(OSError, JobError):
            if self._state_path is not None:
                job = job_load(self._state_path)
                return job if job.apply_id == self.apply_id else None
        return None

    def dumps(self) -> bytes:
        """Return the state as JSON, signed with this user's key; ``job_loads`` accepts no other."""
        return sign(_PURPOSE, self._fields())

    def _fields(self) -> dict[str, Any]:
        bases = [base for base in type(self).__mro__[1:] if issubclass(base, JobTrait)]
        fields = {
            "version": _VERSION,
            "kind": self.kind,
            # Nearest first, for programs that know only those.
            "bases": [base.kind for base in bases if not inspect.isabstract(base)],
            "apply_id": self.apply_id,
            **self._to_data(),
        }
        if self.project_file:
            fields["project_file"] = self.project_file
        if self.ending is not None:
            fields["ending"] = self.ending
        return fields

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Keep the state in your own state folder, for this path in this very folder.

        At the path itself a note for people is written, which has no effect.
        """
        record = make_record_of(filename)
        write_private(record, self.dumps())
        hosts = list(self.names_by_url().values())
        about = {"kind": self.kind, "hosts": hosts, "apply_id": self.apply_id}
        write_note(Path(filename), record, about)


def _is_record_of(job: JobTrait, record: Path) -> bool:
    """Whether the record is still this job's: another program may have replaced it."""
    with contextlib.suppress(OSError, JobError):
        return job_loads(read_private(record)).apply_id == job.apply_id
    return False


_NOT_KEPT = (
    "apply_id", "ending", "project_file", "_running", "_state_path", "_telemetry", "_mount_specs",
    "_mounts", "_mounted_for",
)  # fmt: skip


def _opened(mount: RemoteMount) -> RemoteMount:
    mount.open()
    return mount


class _Damaged(JobError):
    """The data is not the state of a job."""


def job_loads(data: bytes) -> JobTrait:
    """Return the job of a state.

    Raises ``JobError`` for data that is no state, or that this user's monarch has not written on
    this machine.
    """
    try:
        fields = verified(_PURPOSE, data)
    except ValueError:
        raise _Damaged("this is not the state of a job") from None
    return job_of(fields)


def job_from_client(data: bytes) -> JobTrait:
    """Return the job whose state a client sent from another machine.

    The state is signed with that machine's key, so the caller must have checked that the sender has
    the job's secret. Raises ``JobError`` as `job_of` does.
    """
    fields = json.loads(data)
    for name in (SIGNATURE, "project_file"):  # That file is the client's.
        fields.pop(name, None)
    return job_of(fields)


def job_of(fields: dict[str, Any]) -> JobTrait:
    """Return the job that a state's fields describe. The caller has checked where they come from.

    Raises ``JobError`` for fields that are damaged, of another version, or of an unknown kind of
    job.
    """
    try:
        kinds, version = [fields.pop("kind"), *fields.pop("bases", [])], fields.pop("version")
    except (KeyError, TypeError):
        raise _Damaged("this is not the state of a job") from None
    if version != _VERSION:
        raise JobError(
            f"the job's state is of version {version}, this release reads {_VERSION}: end the "
            "job with the release that made it"
        )
    kind = next((name for name in map(str, kinds) if name in JobTrait._kinds), None)
    if kind is None:
        raise JobError(f"unknown kind of job {kinds[0]!r}; known: {', '.join(JobTrait._kinds)}")
    cls = JobTrait._kinds[kind]
    apply_id, ending = fields.pop("apply_id", None), fields.pop("ending", None)
    project_file = str(fields.pop("project_file", ""))
    try:
        job = cls._from_data(fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _Damaged(f"the state of a {kind} job is damaged: {error!r}") from None
    job.apply_id, job.ending, job.project_file = apply_id, ending, project_file
    job._running = job
    return job


def job_load(filename: str | os.PathLike[str]) -> JobTrait:
    """Return the job whose state ``filename`` names, from your own state folder.

    A file at the path itself is not read. Raises ``FileNotFoundError`` if there is none, and
    ``JobError`` for a state that others could have written.
    """
    missing = FileNotFoundError(errno.ENOENT, "there is no state of a job for", str(filename))
    try:
        record = record_of(filename)
        data = read_private(record)
    except (FileNotFoundError, NotADirectoryError):
        raise missing from None
    try:
        job = job_loads(data)
    except _Damaged as error:
        raise _Damaged(f"{record}: {error}; remove the file to start anew") from None
    except NotSigned as error:
        raise JobError(f"{record}: {error}. Remove the file to start anew") from None
    job._state_path = record
    return job


def _end_earlier(job: JobTrait) -> None:
    """End the allocation of an earlier program, whose place a new one takes.

    A failure is logged, and does not stop the new one.
    """
    try:
        job._end("replaced")
    except Exception:
        _log.warning(
            "could not end the %s job of an earlier program (%s): a new one takes its place, and "
            "what is left of it may go on running",
            job.kind,
            job._state_path,
            exc_info=True,
        )
