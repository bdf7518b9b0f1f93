"""Folders that are equal on other hosts while a mount is open: ``remote_mount``, ``gather_mount``.

Monarch mounts them by FUSE. Here they are copies, which the syncer keeps equal: what was touched
travels, a moment after it was. An actor on each host has the far end, a thread here does the rest.
Git's rules have no say: all of a folder comes along.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch.actor import Actor, HostMesh, SupervisionError, current_rank, endpoint
from monarch.errors import JobError
from monarch.mesh import Point
from monarch.net.machine import machine_id
from monarch_sync import HostView, Manifest, Push, PushMessage, Replica, Scanner, Watcher, Workspace
from monarch_sync.errors import WorkspaceMissing
from monarch_sync.messages import Commit, Staged, decode, encode
from monarch_sync.workspace import Folder

_LOOK_SECONDS = 0.5
_SUBDIR = "$SUBDIR"
_log = logging.getLogger(__name__)

_Part = tuple[bytes, list[bytes]]
"""A message of a push as bytes, and the contents that go beside it."""


class MountSource:
    """The author's end: one folder, and what each copy of it has."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder).expanduser().resolve()
        self._workspace = Workspace(editable=False).with_folders([Folder(path, "", False)])
        self._scanner = Scanner(self._workspace)
        self._watcher: Watcher | None = None
        self._manifest: Manifest | None = None

    def look(self) -> bool:
        """Whether the folder is there, and something in it may have changed since the last look."""
        try:
            if self._watcher is None:
                self._watcher = Watcher(self._workspace)
            touched = self._watcher.changes()
            if touched is not None and not touched:
                return False
            scan = self._scanner.scan() if touched is None else self._scanner.rescan(touched)
        except WorkspaceMissing:
            return False
        manifest = scan.over(self._manifest or Manifest()).manifest
        is_new = self._manifest is None or manifest.digest != self._manifest.digest
        self._manifest = manifest
        return is_new

    def push(self, view: HostView, generation: int) -> Push | None:
        """A push of what was found last to a copy; ``None`` where it has that."""
        manifest = self._manifest
        if manifest is None:
            return None
        if view.manifest is not None and view.manifest.digest == manifest.digest:
            return None
        # Contents are shared by pushes of one generation.
        return Push(self._workspace, manifest, view, generation, self._scanner.contents)

    def close(self) -> None:
        """Give the watches back."""
        if self._watcher is not None:
            self._watcher.close()


class MountCopy:
    """The other end: a folder that becomes what its source is. Raises ``ReplicaBusy``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        os.makedirs(folder, exist_ok=True)
        self._replica = Replica(folder)

    @property
    def generation(self) -> int:
        """The number of the state that it has."""
        return self._replica.generation

    def handle(self, message: bytes, blobs: Sequence[bytes]) -> bytes:
        """Answer a message of a push."""
        return encode(self._replica.handle(decode(message), list(blobs)))

    def commit(self, generation: int) -> bytes:
        """Show what was staged."""
        reply = encode(self._replica.handle(Commit(generation)))
        self._replica.settle()
        return reply

    def close(self) -> None:
        """Let others have the folder."""
        self._replica.close()


class _FarCopy(Actor):
    """A copy on a host."""

    def __init__(self) -> None:
        self._copy: MountCopy | None = None

    @endpoint
    def machine(self) -> str:
        return machine_id()

    @endpoint
    def open(self, folder: str, source: str, machine: str) -> int:
        """The generation that the folder has; -1 where it is the source itself."""
        if machine == machine_id():
            here, there = os.path.realpath(folder), os.path.realpath(source)
            if here == there:
                return -1
            if os.path.commonpath([here, there]) in (here, there):
                raise ValueError(
                    f"{folder} and {source} are on one machine, and one is inside the other: mount "
                    "it elsewhere"
                )
        self._copy = MountCopy(folder)
        return self._copy.generation

    @endpoint
    def handle(self, message: bytes, blobs: list[bytes]) -> bytes:
        assert self._copy is not None
        return self._copy.handle(message, blobs)

    @endpoint
    def commit(self, generation: int) -> bytes:
        assert self._copy is not None
        return self._copy.commit(generation)

    def __cleanup__(self, error: Exception | None) -> None:
        if self._copy is not None:
            self._copy.close()


class _FarSource(Actor):
    """A source on a host, for a copy at the client's."""

    def __init__(self, template: str) -> None:
        self._point = current_rank()
        self._source = MountSource(template.replace(_SUBDIR, subfolder(self._point)))
        self._view = HostView()
        self._push: Push | None = None

    @endpoint
    def where(self) -> Point:
        """Its host's coordinates."""
        return self._point

    @endpoint
    def begin(self, generation: int) -> _Part | None:
        """The first message of a push, where something has changed."""
        self._source.look()
        self._push = self._source.push(self._view, generation)
        return None if self._push is None else _packed(self._push.first(brings_content=True))

    @endpoint
    def receive(self, reply: bytes) -> _Part | None:
        """The next message; ``None`` when the copy has all."""
        assert self._push is not None
        step = self._push.receive(decode(reply))
        return None if isinstance(step, Staged) else _packed(step)

    @endpoint
    def committed(self, reply: bytes) -> None:
        assert self._push is not None
        self._push.committed(decode(reply))

    def __cleanup__(self, error: Exception | None) -> None:
        self._source.close()


def _packed(out: PushMessage) -> _Part:
    return encode(out.message), [bytes(blob) for blob in out.blobs]


def subfolder(point: Point) -> str:
    """A host's name in a gathered folder, by its coordinates: ``hosts_0``; "" in a mesh of one."""
    return "_".join(f"{label}_{index}" for label, index in point.items())


class _Mount:
    """A thread that keeps folders equal until ``close``."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _follow(self, bring: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._run, args=(bring,), name="monarch-mount", daemon=True
        )
        self._thread = thread
        thread.start()

    def _run(self, bring: Callable[[], None]) -> None:
        told = ""
        while not self._is_closed.wait(_LOOK_SECONDS):
            try:
                with self._lock:
                    if not self._is_closed.is_set():
                        bring()
                told = ""
            except SupervisionError as error:
                if not self._is_closed.is_set():
                    _log.warning("%s is kept equal no more: %s", self._what, error)
                return
            except Exception as error:
                if str(error) != told:  # It is tried again, and told once.
                    _log.warning("%s is behind: %s", self._what, error)
                told = str(error)

    def _end(self) -> bool:
        """Whether this has ended it."""
        was_closed = self._is_closed.is_set()
        self._is_closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        return not was_closed


class RemoteMount(_Mount):
    """A local folder on all hosts of a mesh. ``open`` it, or use it as a ``with`` block."""

    def __init__(
        self, host_mesh: HostMesh, sourcepath: str | os.PathLike[str], mntpoint: str | None = None
    ) -> None:
        self.sourcepath = os.path.abspath(sourcepath)
        self.mntpoint = os.path.abspath(mntpoint or sourcepath)
        super().__init__(f"the mount of {self.sourcepath} at {self.mntpoint}")
        self._hosts = host_mesh
        self._source: MountSource | None = None
        self._procs: Any = None
        self._copies: list[tuple[Any, HostView, int]] = []

    def open(self) -> None:
        """Bring the folder to the hosts, and what changes in it from then on. Raises ``ValueError``
        for a folder that is not there, or that meets the mount point, ``SyncError`` and
        ``ActorError``."""
        if self._source is not None:
            return
        if not os.path.isdir(self.sourcepath):
            raise ValueError(f"{self.sourcepath} is no folder that can be mounted")
        self._procs = self._hosts.spawn_procs(name="mount")
        try:
            far = self._procs.spawn("mount", _FarCopy)
            # Hosts that are one machine have one folder.
            firsts: dict[str, Point] = {}
            for point, machine in far.machine.call().get().items():
                firsts.setdefault(machine, point)
            for point in firsts.values():
                one = far.slice(**point)
                generation = one.open.call_one(self.mntpoint, self.sourcepath, machine_id()).get()
                if generation >= 0:
                    self._copies.append((one, HostView(), generation))
            self._source = MountSource(self.sourcepath)
            self._bring()
        except BaseException:
            self.close()
            raise
        self._follow(self._bring)

    def refresh(self) -> None:
        """Bring what has changed now. Raises as ``open`` does."""
        with self._lock:
            self._bring()

    def _bring(self) -> None:
        source = self._source
        assert source is not None, "the mount is not open"
        source.look()
        for far, view, found in self._copies:
            push = source.push(view, max(view.generation, found) + 1)
            if push is not None:
                _carry(push, far)

    def close(self) -> None:
        """Keep it equal no more. What was brought stays where it is."""
        if self._end() and self._source is not None:
            self._source.close()
        if self._procs is not None:
            self._procs.stop().get()
            self._procs = None

    def __enter__(self) -> RemoteMount:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _carry(push: Push, far: Any) -> None:
    step: PushMessage | Staged = push.first()
    while isinstance(step, PushMessage):
        step = push.receive(decode(far.handle.call_one(*_packed(step)).get()))
    push.committed(decode(far.commit.call_one(push.generation).get()))


class GatherMount(_Mount):
    """Folders of all hosts of a mesh, in a local one: each in a folder that is named by the host's
    coordinates. Use it as a ``with`` block, or ``close`` it."""

    def __init__(
        self, host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str
    ) -> None:
        super().__init__(f"the gathered {remote_mount_point} in {local_mount_point}")
        self.local_mount_point = os.path.abspath(local_mount_point)
        if not remote_mount_point.startswith("/"):
            raise ValueError(f"{remote_mount_point!r} is no absolute path of a host")
        self._procs: Any = host_mesh.spawn_procs(name="gather")
        self._copies: list[tuple[Any, MountCopy]] = []
        try:
            far = self._procs.spawn("gather", _FarSource, remote_mount_point)
            for point in far.where.call().get().values():
                folder = os.path.join(self.local_mount_point, subfolder(point))
                self._copies.append((far.slice(**point), MountCopy(folder)))
            self._bring()
        except BaseException:
            self.close()
            raise
        self._follow(self._bring)

    def refresh(self) -> None:
        """Bring what has changed now."""
        with self._lock:
            self._bring()

    def _bring(self) -> None:
        for far, copy in self._copies:
            part = far.begin.call_one(copy.generation + 1).get()
            if part is None:
                continue
            while part is not None:
                part = far.receive.call_one(copy.handle(*part)).get()
            far.committed.call_one(copy.commit(copy.generation + 1)).get()

    def close(self) -> None:
        """Keep it equal no more. What was brought stays where it is."""
        self._end()
        for _, copy in self._copies:
            copy.close()
        self._copies.clear()
        if self._procs is not None:
            self._procs.stop().get()
            self._procs = None

    def __enter__(self) -> GatherMount:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def remotemount(host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None) -> RemoteMount:
    """A mount of a local folder on hosts, which is not open yet; at ``monarch.remotemount``."""
    return RemoteMount(host_mesh, sourcepath, mntpoint)


def gather_mount(
    host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str
) -> GatherMount:
    """Folders of hosts in a local one, from now on; at ``monarch.gather_mount``.

    ``$SUBDIR`` in ``remote_mount_point`` is each host's own name there, ``hosts_0`` say.
    """
    return GatherMount(host_mesh, remote_mount_point, local_mount_point)


class MountSpec(NamedTuple):
    """A mount that a job has once it runs, on ``meshes`` of it, or on all of them."""

    open: Callable[[HostMesh], RemoteMount | GatherMount]
    meshes: tuple[str, ...] | None
    python: str = ""

    def opened_on(self, hosts: dict[str, HostMesh]) -> list[RemoteMount | GatherMount]:
        """The mounts. Raises ``JobError`` for a mesh that is not there."""
        return [self.open(hosts[name]) for name in self._names(hosts)]

    def with_python(self, hosts: dict[str, HostMesh]) -> dict[str, HostMesh]:
        """Its meshes, as they start ``python`` for procs."""
        if not self.python:
            return {}
        return {
            name: hosts[name].with_python_executable(self.python) for name in self._names(hosts)
        }

    def _names(self, hosts: dict[str, HostMesh]) -> tuple[str, ...]:
        names = self.meshes if self.meshes is not None else tuple(hosts)
        if missing := [name for name in names if name not in hosts]:
            raise JobError(f"no mesh {missing[0]!r} to mount on; there are: {', '.join(hosts)}")
        return names
