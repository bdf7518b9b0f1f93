"""The host agent's replica: answers the messages of a push, off the I/O thread."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from monarch.runtime.hosts.hosted_workspace import WorkspaceHost
from monarch.runtime.workspace.packages.host_environment import (
    HostEnvironment,
    UnfitEnvironment,
    import_place,
)
from monarch.runtime.workspace.packages.python_here import installed, platforms, python_tag
from monarch.runtime.workspace.pushing.shared_folder import SharedFolder
from monarch.runtime.workspace.pushing.spreading import pass_on
from monarch.wire.address import Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.codec import Bytes, Envelope
from monarch.wire.message import FilesNow, HostPackages, ProcDown, Share, Sync, SyncAnswer, TakeBack
from monarch_sync import messages
from monarch_sync.errors import BadMessage, ReplicaBusy
from monarch_sync.replicas.replica import SETTLE_SECONDS, Replica
from monarch_sync.replicas.state_folder import find_state_folder, make_state_folder
from monarch_sync.tree.manifest import Manifest, encode_paths

_log = logging.getLogger("monarch.workspace")

_LOCK_SECONDS = 3.0
_LOCK_AGAIN_SECONDS = 0.05


class ReplicaAgent:
    """Keeps one replica; disk work happens on a thread of its own, one message at a time.

    It is the ``HostedWorkspace`` of the agent that it serves.
    """

    def __init__(self, root: str, host_name: str) -> None:
        self.root = root
        self._host_name = host_name
        self._replica: Replica | None = None
        self._open(str(make_state_folder(root)))
        # The state before the last commit, to go back to.
        self._previous: tuple[int, Manifest] | None = None
        # Of the staged content: files of packages, and where their content lies.
        self._packages: list[tuple[str, str]] = []
        self.is_moving = False
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-replica", daemon=True)

    def serve(self, host: WorkspaceHost) -> None:
        """Answer the messages of pushes to this host, from here on."""
        self._agent = host
        self._lease = Lease(host)
        self._thread.start()
        host.node.handle(Sync, self._on_sync)
        host.node.handle(Share, self._on_order)
        host.node.handle(TakeBack, self._on_order)

    @property
    def generation(self) -> int:
        return self._state()[0]

    @property
    def digest(self) -> str:
        return self._state()[1]

    @property
    def staged_bytes(self) -> int:
        return 0 if self._replica is None else self._replica.staged_bytes

    @property
    def replica(self) -> tuple[str, bool]:
        return self._folder.id, self._replica is not None

    def packages(self) -> HostPackages:
        return HostPackages(python_tag(), installed(), tuple(platforms()))

    def _open(self, state: str) -> None:
        """Load the records of a state folder. If no other host writes the folder, this host writes
        it from now on.
        """
        self.state_folder = state
        self._folder = SharedFolder(self.root, state)
        self._environment = HostEnvironment(self.root, state)
        self._folders = _read_folders(state)
        self._write_if_free()

    def _follow_state_folder(self) -> None:
        """If another host has begun a state folder inside this replica's folder, use that one from
        now on.

        A host that shares the folder may not see the state folder beside it, so it has begun
        another. All hosts that share a folder must use the same state.
        """
        state = find_state_folder(self.root)
        if state is None or str(state) == self.state_folder:
            return
        if self._replica is not None:
            self._replica.settle()
            self._replica.close()
            self._replica = None
        self._open(str(state))

    def _write_if_free(self, patience_seconds: float = 0.0) -> Replica | None:
        """Return the replica, if this host may write the folder; None if another host still writes
        it.

        Waits up to ``patience_seconds`` for another writer that may be ending.
        """
        deadline = time.monotonic() + patience_seconds
        while self._replica is None:
            try:
                self._replica = Replica(self.root)
            except ReplicaBusy:
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOCK_AGAIN_SECONDS)
            else:
                self._show_environment()
        return self._replica

    def _show_environment(self) -> str:
        """Show the packages that the present files need; return why that failed, or ""."""
        try:
            self._environment.follow()
        except UnfitEnvironment as error:
            _log.warning("%s: %s", self._host_name, error)
            return str(error)
        return ""

    def _state(self) -> tuple[int, str]:
        """Return the generation and digest of this host's folder, written by this host or by
        another that shares it.
        """
        replica, folder = self._replica, self._folder
        if replica is None or folder.generation > replica.generation:
            return folder.generation, folder.digest
        return replica.generation, replica.manifest.digest.hex()

    def import_folders(self) -> tuple[str, ...]:
        """Return the folders that the workspace's folders landed in; procs put them in front of
        `sys.path`."""
        return tuple(import_place(self.root, self.state_folder, f) for f in self._folders)

    def _on_sync(self, envelope: Envelope[Sync]) -> None:
        order = envelope.message
        if order.onward:
            # First of all, so that the other hosts write to their disks at the same time.
            pass_on(self._agent.node, order, envelope.payload, envelope.buffers)
        self._orders.put(lambda: self._answer(envelope))

    def _on_order(self, envelope: Envelope[Share | TakeBack]) -> None:
        order = envelope.message
        self._orders.put(lambda: self._do(order, envelope.payload))

    def _share(self, order: Share, payload: Bytes) -> str:
        """Take up what another host wrote to this folder; return "", or why that is impossible."""
        files = msgspec.msgpack.decode(payload, type=list[tuple[bytes, bytes]])
        why = self._folder.verify(order.generation, order.digest, files)
        why = why or self._environment.why_unfit()
        if not why:
            self._use_folders(order.folders or ("",), is_writer=False)
        self._agent.node.loop.call_soon(self._agent.workspace_changed)
        return why

    def _do(self, order: Share | TakeBack, payload: Bytes) -> None:
        """Carry out an order; answer it with the state here afterwards, and the error, if any."""
        try:
            if isinstance(order, Share):
                why = self._share(order, payload)
            else:
                why = self._take_back(order)
        except Exception as error:
            why = f"it failed there: {type(error).__name__}: {error}"
        digest = self.digest if os.path.isdir(self.root) else ""
        self._agent.node.answer(order, FilesNow(self.generation, digest), why)

    def _run(self) -> None:
        while (order := self._next()) is not None:
            try:
                order()
            except Exception:
                _log.exception("a push could not be answered")

    def _next(self) -> Callable[[], None] | None:
        """Return the next order; None if this agent ends. If no commit comes for a while, work that
        the last commit has left for later is done in between.
        """
        replica = self._replica
        if replica is not None and not replica.is_settled:
            with suppress(queue.Empty):
                return self._orders.get(timeout=SETTLE_SECONDS)
            replica.settle()
            self._environment.settle()
        return self._orders.get()

    def _answer(self, envelope: Envelope[Sync]) -> None:
        order = envelope.message
        node = self._agent.node
        try:
            message = messages.decode(bytes(envelope.payload))
        except BadMessage as error:
            node.answer(
                order, SyncAnswer(messages.encode(messages.Refused("bad-message", str(error))))
            )
            return
        try:
            answer = self._turn_away(order, message) or self._take(order, message, envelope)
        except Exception as error:
            _log.exception("a push could not be answered")
            answer = messages.Refused("failed", f"it failed there: {type(error).__name__}: {error}")
        if isinstance(answer, messages.Staged | messages.Committed):
            _log.debug("generation %d: %s", answer.generation, type(answer).__name__)
        agent = self._agent
        body = SyncAnswer(messages.encode(answer), self.root, self._host_name)
        if isinstance(answer, messages.Staged):
            body.is_staged = True
            body.packages = tuple(self._packages)
            # The client whose processes change with the files. Each push needs it, so there is no
            # question of its own for it.
            body.client_address = agent.client
        node.answer(order, body)

    def _turn_away(self, order: Sync, message: messages.Message) -> messages.Message | None:
        """Return the refusal for an author that comes while another author's push is in progress.

        ``None`` if the message may be handled.
        """
        lease = self._lease
        if isinstance(message, messages.Question) or not lease.is_anothers(
            order.author or order.sender
        ):
            return None
        if isinstance(message, messages.Abort):
            return messages.Aborted(message.generation)
        if isinstance(message, messages.Commit):
            return messages.Refused(
                "not-staged", f"{lease.author} has begun another push meanwhile"
            )
        return messages.Refused(
            "busy", f"{lease.author} pushes generation {lease.generation} at this moment"
        )

    def _take(
        self, order: Sync, message: messages.Message, envelope: Envelope[Sync]
    ) -> messages.Message:
        if isinstance(message, messages.Instalment | messages.StageRequest):
            self._follow_state_folder()
        replica, lease = self._write_if_free(_LOCK_SECONDS), self._lease
        if replica is None:
            return messages.Refused(
                "shared", "another host keeps the same folder: push again, and to that one, too"
            )
        previous = replica.generation, replica.manifest
        if isinstance(message, messages.Instalment | messages.StageRequest):
            lease.take(order.sender, order.pid, message.author, message.generation)
        elif isinstance(message, messages.Commit):
            self._use_folders(order.folders or ("",))
        with self._moving(isinstance(message, messages.Commit)):
            answer = replica.handle(message, envelope.buffers)
            if replica.generation != previous[0]:
                self._previous = (replica.generation, previous[1])
                self._tell_commit(order, replica)
                if why := self._show_environment():
                    answer = messages.Refused("environment", why)
        if isinstance(answer, messages.Staged):
            answer = self._stage_environment(replica, answer)
        elif isinstance(answer, messages.Aborted):
            self._environment.drop()
        is_refused = isinstance(answer, messages.Refused)
        if not isinstance(message, messages.Question) and (
            is_refused
            or not isinstance(
                message, messages.Instalment | messages.StageRequest | messages.Supply
            )
        ):
            lease.end()
        return answer

    def _tell_commit(self, order: Sync, replica: Replica) -> None:
        """Publish for watchers that the state here has changed, and which author has changed it."""
        bulletin = Bulletin(
            "workspace",
            "committed",
            generation=replica.generation,
            data={
                "author": self._lease.author,
                "sender": order.author or order.sender,
                "digest": replica.manifest.digest.hex(),
            },
        )
        with suppress(RuntimeError):  # The loop has ended.
            self._agent.node.loop.call_soon(lambda: self._agent.publish(bulletin))

    def _stage_environment(self, replica: Replica, staged: messages.Staged) -> messages.Message:
        """Prepare the packages that a staged state needs; return ``staged``, the answer to the
        author.

        If this host cannot use the packages, drop the staged state and return a refusal.
        """
        try:
            self._packages = self._environment.stage(staged.files)
        except UnfitEnvironment as error:
            replica.abort(staged.generation)
            return messages.Refused("environment", str(error))
        return staged

    def _use_folders(self, folders: tuple[str, ...], *, is_writer: bool = True) -> None:
        if folders != self._folders:
            self._folders = folders
            if not is_writer:
                return
            with suppress(OSError):  # Only a later start of this agent would miss it.
                Path(_folders_file(self.state_folder)).write_text(json.dumps(folders))

    @contextmanager
    def _moving(self, is_moving: bool) -> Iterator[None]:
        """Let no proc start during this block, in which files change."""
        self.is_moving = is_moving
        try:
            yield
        finally:
            self.is_moving = False
            if is_moving:
                with suppress(RuntimeError):  # The loop has ended.
                    self._agent.node.loop.call_soon(self._agent.workspace_changed)

    def _take_back(self, order: TakeBack) -> str:
        """Go back to the state from before a generation; return "", or a text that says why that is
        impossible.
        """
        replica = self._replica
        if replica is None:
            return ""
        if replica.generation != order.generation:
            # It was never shown here, or another author has pushed since.
            if not self._lease.is_anothers(order.author or order.sender):
                replica.abort(order.generation)
            return ""
        number, old = self._previous or (0, replica.manifest)
        if number != order.generation:
            return "what was here before is not known: this host agent was started since"
        paths = sorted(old.changed_paths(replica.manifest))
        entries = {path: old.get(path) for path in paths}
        stage = messages.StageRequest(
            generation=order.generation + 1,
            author=replica.author,
            digest_name=old.digest_name,
            digest=old.digest,
            base=replica.manifest.digest,
            changed=[entry.to_row() for entry in entries.values() if entry is not None],
            removed=encode_paths(path for path, entry in entries.items() if entry is None),
            blobs=[],
            takes_back=True,
        )
        for message in (stage, messages.Commit(stage.generation)):
            with self._moving(isinstance(message, messages.Commit)):
                answer = replica.handle(message)
            if not isinstance(answer, messages.Staged | messages.Committed):
                replica.abort(stage.generation)
                reason = (
                    answer.reason
                    if isinstance(answer, messages.Refused)
                    else "old contents are gone"
                )
                return f"{self._host_name}: {reason}"
        return self._show_environment()

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(5.0)
        if self._replica is not None:
            self._replica.settle()
            self._replica.close()


def _folders_file(state: str) -> str:
    return os.path.join(state, "folders")


def _read_folders(state: str) -> tuple[str, ...]:
    """Return the folders that the workspace's folders landed in at the last push to this
    replica."""
    try:
        return tuple(map(str, json.loads(Path(_folders_file(state)).read_text())))
    except (OSError, ValueError, TypeError):
        return ("",)


class Lease:
    """Lets one author push at a time. The lease ends with the push, or when the author ends.

    The staged files stay after that, so that an owner that was told to switch can still have them
    shown.
    """

    def __init__(self, agent: WorkspaceHost) -> None:
        self._agent = agent
        self._node = agent.node
        self._holder: Uid = ""
        self._visitors: set[Uid] = set()
        self.author = ""
        self.generation = 0
        self._node.peer_down.on_down.append(self._on_peer_down)

    def is_anothers(self, sender: Uid) -> bool:
        """Return whether another author holds the lease, so that ``sender`` has to wait."""
        return self._holder not in ("", sender)

    def take(self, sender: Uid, pid: int, author: str, generation: int) -> None:
        """Give the lease to ``sender``, which pushes from now on."""
        self.author, self.generation = author, generation
        if self._holder == sender:
            return
        self._holder = sender
        if pid and sender not in self._visitors and not self._is_client(sender):
            self._visitors.add(sender)
            address = self._node.address_of(sender)
            self._node.failure_detector.watch(address, pid, lambda: self._has_left(sender))

    def end(self) -> None:
        """End the lease, because the push is over here."""
        sender, self._holder = self._holder, ""
        if sender and not self._is_client(sender):
            self._node.failure_detector.unexpect(sender)

    def _has_left(self, sender: Uid) -> None:
        self._on_peer_down(sender, ProcDown(sender, "it has ended"))
        self._node.peer_down.left(sender)

    def _is_client(self, sender: Uid) -> bool:
        """Return whether ``sender`` is the client of this host, or one of its procs here. These are
        watched in any case, so the lease need not watch them.
        """
        client = self._agent.client
        return (client is not None and client.uid == sender) or sender in self._agent.procs

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self._visitors.discard(uid)
        if uid == self._holder:
            self._holder = ""
