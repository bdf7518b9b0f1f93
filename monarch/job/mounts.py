"""Mounts: folders that are mirrored on other hosts while open, ``remote_mount``, ``gather_mount``.

Monarch mounts them by FUSE. Here they are copies, which the syncer keeps equal: files are sent a
moment after they change. An actor on each host has the remote end, a thread here does the rest.
Git's ignore rules have no effect: all of a folder is sent.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
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
    """The sending end of a mount: one folder, and the state of each copy of it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder).expanduser().resolve()
        self._workspace = Workspace(editable=False).with_folders([Folder(path, "", False)])
        self._scanner = Scanner(self._workspace)
        #: ``None`` before the first look.
        self._watcher: Watcher | None = None
        #: The last scan; ``None`` before the first.
        self._manifest: Manifest | None = None

    def look(self) -> bool:
        """Scan the folder; return False if it is missing, or has not changed since the last
        call."""
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
        """Return a push of the last scan to a copy; ``None`` if the copy is up to date."""
        manifest = self._manifest
        if manifest is None:
            return None
        if view.manifest is not None and view.manifest.digest == manifest.digest:
            return None
        # Contents are shared by pushes of one generation.
        return Push(self._workspace, manifest, view, generation, self._scanner.contents)

    def close(self) -> None:
        """Close the file watches."""
        if self._watcher is not None:
            self._watcher.close()


class MountCopy:
    """The receiving end of a mount: a folder that becomes equal to its source.

    Raises ``ReplicaBusy`` if another process writes to the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        os.makedirs(folder, exist_ok=True)
        self._replica = Replica(folder)

    @property
    def generation(self) -> int:
        """Return the generation that the copy has."""
        return self._replica.generation

    def handle(self, message: bytes, blobs: Sequence[bytes]) -> bytes:
        """Answer a message of a push; return the encoded answer."""
        return encode(self._replica.handle(decode(message), list(blobs)))

    def commit(self, generation: int) -> bytes:
        """Make the staged files of ``generation`` visible; return the encoded answer for the
        source."""
        reply = encode(self._replica.handle(Commit(generation)))
        self._replica.settle()
        return reply

    def close(self) -> None:
        """Release the folder, so that others may use it."""
        self._replica.close()


class _FarCopy(Actor):
    """The actor on a host that has a copy."""

    def __init__(self) -> None:
        self._copy: MountCopy | None = None

    @endpoint
    def machine(self) -> str:
        return machine_id()

    @endpoint
    def open(self, folder: str, source: str, machine: str) -> int:
        """Open the copy and return its generation; -1 if the folder is the source itself."""
        if machine == machine_id():
            target, origin = os.path.realpath(folder), os.path.realpath(source)
            if target == origin:
                return -1
            if os.path.commonpath([target, origin]) in (target, origin):
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
    """The actor on a host that has a source, for a copy at the client."""

    def __init__(self, template: str) -> None:
        self._point = current_rank()
        self._source = MountSource(template.replace(_SUBDIR, subfolder(self._point)))
        self._view = HostView()
        self._push: Push | None = None

    @endpoint
    def where(self) -> Point:
        """Return its host's coordinates."""
        return self._point

    @endpoint
    def begin(self, generation: int) -> _Part | None:
        """Return the first message of a push; ``None`` if nothing has changed."""
        self._source.look()
        self._push = self._source.push(self._view, generation)
        return None if self._push is None else _packed(self._push.first(brings_content=True))

    @endpoint
    def receive(self, reply: bytes) -> _Part | None:
        """Return the push's next message; ``None`` when the copy has staged everything."""
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
    """Return a host's folder name in a gathered folder, such as ``hosts_0``; "" in a mesh of
    one."""
    return "_".join(f"{label}_{index}" for label, index in point.items())


class _Mount(ABC):
    """A thread that keeps folders equal until ``close``; ``title`` names them in the log."""

    def __init__(self, title: str) -> None:
        self._title = title
        #: The procs with the remote ends; ``None`` unless they run.
        self._procs: Any = None
        self._is_closed = threading.Event()
        #: Held while changes are transferred.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="monarch-mount", daemon=True)

    @abstractmethod
    def _transfer(self) -> None:
        """Transfer all changes."""

    @abstractmethod
    def close(self) -> None:
        """Stop the transfer of changes. The copies stay."""

    def refresh(self) -> None:
        """Transfer changes now.

        Raises ``SyncError`` if a copy refuses them, and ``ActorError`` if a host fails.
        """
        with self._lock:
            self._transfer()

    def _run(self) -> None:
        logged = ""
        while not self._is_closed.wait(_LOOK_SECONDS):
            try:
                with self._lock:
                    if not self._is_closed.is_set():
                        self._transfer()
                logged = ""
            except SupervisionError as error:
                if not self._is_closed.is_set():
                    _log.warning("%s is kept equal no more: %s", self._title, error)
                return
            except Exception as error:
                if str(error) != logged:  # It is tried again, and logged once.
                    _log.warning("%s is behind: %s", self._title, error)
                logged = str(error)

    def _end(self) -> None:
        """End the thread."""
        self._is_closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _stop_procs(self) -> None:
        if self._procs is not None:
            self._procs.stop().get()
            self._procs = None

    def __exit__(self, *error: object) -> None:
        self.close()


class RemoteMount(_Mount):
    """A mount of a local folder on all hosts of a mesh. ``open`` it, or use it as a ``with``
    block."""

    def __init__(
        self, host_mesh: HostMesh, sourcepath: str | os.PathLike[str], mntpoint: str | None = None
    ) -> None:
        self.sourcepath = os.path.abspath(sourcepath)
        self.mntpoint = os.path.abspath(mntpoint or sourcepath)
        super().__init__(f"the mount of {self.sourcepath} at {self.mntpoint}")
        self._hosts = host_mesh
        #: ``None`` before ``open``.
        self._source: MountSource | None = None
        #: The remote ends, each with what is known of the copy, and its first generation.
        self._copies: list[tuple[Any, HostView, int]] = []

    def open(self) -> None:
        """Send the folder to the hosts, and from then on its changes.

        Raises ``ValueError`` for a folder that does not exist, or overlaps the mount point. Raises
        ``SyncError`` if a host refuses the files, and ``ActorError`` if a host fails.
        """
        if self._source is not None:
            return
        if not os.path.isdir(self.sourcepath):
            raise ValueError(f"{self.sourcepath} is no folder that can be mounted")
        self._procs = self._hosts.spawn_procs(name="mount")
        try:
            copies = self._procs.spawn("mount", _FarCopy)
            # Hosts that are one machine have one folder.
            points: dict[str, Point] = {}
            for point, machine in copies.machine.call().get().items():
                points.setdefault(machine, point)
            for point in points.values():
                copy = copies.slice(**point)
                generation = copy.open.call_one(self.mntpoint, self.sourcepath, machine_id()).get()
                if generation >= 0:
                    self._copies.append((copy, HostView(), generation))
            self._source = MountSource(self.sourcepath)
            self._transfer()
        except BaseException:
            self.close()
            raise
        self._thread.start()

    def _transfer(self) -> None:
        source = self._source
        assert source is not None, "the mount is not open"
        source.look()
        for copy, view, first_generation in self._copies:
            push = source.push(view, max(view.generation, first_generation) + 1)
            if push is None:
                continue
            step: PushMessage | Staged = push.first()
            while isinstance(step, PushMessage):
                step = push.receive(decode(copy.handle.call_one(*_packed(step)).get()))
            push.committed(decode(copy.commit.call_one(push.generation).get()))

    def close(self) -> None:
        """Stop sending changes. The copies stay."""
        was_closed = self._is_closed.is_set()
        self._end()
        if not was_closed and self._source is not None:
            self._source.close()
        self._stop_procs()

    def __enter__(self) -> RemoteMount:
        self.open()
        return self


class GatherMount(_Mount):
    """A mount of folders of all hosts in a local one, each in a folder named by the host's
    coordinates.

    Use it as a ``with`` block, or ``close`` it.
    """

    def __init__(
        self, host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str
    ) -> None:
        super().__init__(f"the gathered {remote_mount_point} in {local_mount_point}")
        self.local_mount_point = os.path.abspath(local_mount_point)
        if not remote_mount_point.startswith("/"):
            raise ValueError(f"{remote_mount_point!r} is no absolute path of a host")
        self._procs = host_mesh.spawn_procs(name="gather")
        #: The remote sources, each with its local copy.
        self._copies: list[tuple[Any, MountCopy]] = []
        try:
            sources = self._procs.spawn("gather", _FarSource, remote_mount_point)
            for point in sources.where.call().get().values():
                folder = os.path.join(self.local_mount_point, subfolder(point))
                self._copies.append((sources.slice(**point), MountCopy(folder)))
            self._transfer()
        except BaseException:
            self.close()
            raise
        self._thread.start()

    def _transfer(self) -> None:
        for source, copy in self._copies:
            part = source.begin.call_one(copy.generation + 1).get()
            if part is None:
                continue
            while part is not None:
                part = source.receive.call_one(copy.handle(*part)).get()
            source.committed.call_one(copy.commit(copy.generation + 1)).get()

    def close(self) -> None:
        """Stop fetching changes. The copies stay."""
        self._end()
        for _, copy in self._copies:
            copy.close()
        self._copies.clear()
        self._stop_procs()

    def __enter__(self) -> GatherMount:
        return self


def remotemount(host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None) -> RemoteMount:
    """Return a mount of a local folder on hosts, not open yet; also ``monarch.remotemount``."""
    return RemoteMount(host_mesh, sourcepath, mntpoint)


def gather_mount(
    host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str
) -> GatherMount:
    """Mirror folders of hosts in a local one; also ``monarch.gather_mount``.

    It goes on until the returned mount is closed. ``$SUBDIR`` in ``remote_mount_point`` is each
    host's folder name, such as ``hosts_0``.
    """
    return GatherMount(host_mesh, remote_mount_point, local_mount_point)


class MountSpec(NamedTuple):
    """A mount that a job opens once it runs, on its ``meshes``, or on all of them."""

    open: Callable[[HostMesh], RemoteMount | GatherMount]
    meshes: tuple[str, ...] | None
    python: str = ""

    def opened_on(self, hosts: dict[str, HostMesh]) -> list[RemoteMount | GatherMount]:
        """Open the mounts and return them. Raises ``JobError`` for a mesh that does not exist."""
        return [self.open(hosts[name]) for name in self._names(hosts)]

    def with_python(self, hosts: dict[str, HostMesh]) -> dict[str, HostMesh]:
        """Return its meshes, changed so that they start procs with ``python``."""
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
