"""TorchFT with the changes that it needs to survive every fault; each change says what it is for.

A change depends on what the installed TorchFT has, not on its version. TorchFT's manager itself
calls the method with which a process group meets anew (`configure` in 0.2, `reconfigure` in 0.3);
nothing here does. If a name is gone that a change needs, `check_parts` raises an error. All this
was run with TorchFT 0.2.0. Version 0.3 was not available: only the interface of its process groups
was tried, with a fake.

The changes work with NCCL too: only the process group that the manager gets differs. With gloo and
a model on a GPU, tensors are averaged through copies in the host's memory.
"""

# Not `from __future__ import annotations`: DDP looks at the annotations of its hook.

import contextlib
import contextvars
import logging
import pickle
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.server import ThreadingHTTPServer
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torchft.manager
from torch.utils._pytree import tree_map
from torchft import Manager
from torchft.checkpointing import HTTPTransport, http_transport
from torchft.coordination import ManagerServer

from monarch.actor import Actor, endpoint
from monarch.errors import JobError
from monarch.rdma import RDMAAction, RDMABuffer, RemoteMemoryError
from monarch.runs.recover.clock import unheld_time

_PAUSE_SECONDS = 0.1
# Members send the lighthouse a heartbeat ten times a second. Tries are counted, not timed, so that
# all ranks of a group, which join a quorum together, give up in the same try.
_NUM_TRIES = 20
_READ_BYTES = 64 * 1024
"""Tensors of at least this size are read from the memory of the process that has them."""

_log = logging.getLogger(__name__)
_manager: "CarefulManager | None" = None  # the present one of this process
# The parts of TorchFT that are changed or used here.
_PARTS = (
    (torchft.manager, "ManagerServer"),
    (http_transport, "_IPv6HTTPServer"),
    (Manager, "start_quorum"),
    (Manager, "should_commit"),
    (HTTPTransport, "disallow_checkpoint"),
)


def check_parts(parts: Sequence[tuple[object, str]] = _PARTS) -> None:
    """Raise JobError if TorchFT lacks a part that this module changes.

    That version of TorchFT may not need the change, but a person must check that.
    """
    gone = [name for owner, name in parts if not hasattr(owner, name)]
    if gone:
        raise JobError(
            f"torchft {metadata.version('torchft')} has no {', '.join(gone)}, which the recipe "
            "fault_tolerant changes: pip install 'torchft>=0.2,<0.3'"
        )


check_parts()


class BehindOthers(RuntimeError):
    """This group is behind the steps that others have committed, and there is no group to heal
    from.

    It must not train: it would end with other parameters.
    """


class LighthouseGone(RuntimeError):
    """The lighthouse has died. Make a new manager, with a new store, for the next lighthouse."""


@contextlib.contextmanager
def _instead(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Set ``module.name`` to ``value`` within the block."""
    was = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, was)


class CarefulManager(Manager):  # type: ignore[misc]
    """A manager with a synchronous quorum.

    After the quorum, this process has the newest parameters.

    - A new lighthouse counts its quorums from 1 again. A manager that knew the old one would take
      an old quorum for a new one of the same number, or meet the others at an old store, and they
      would wait for each other forever. So ``give_up``, which any thread may call, ends all waits
      for the old lighthouse; the waiting calls raise LighthouseGone.
    - A quorum that fails for another reason is asked for again for ``patience_seconds``. TorchFT's
      manager would raise the first error forever.
    - A group that comes back when all others have finished would train alone from its old step.
      Here the quorum raises BehindOthers.
    - A quorum of fewer than ``least_groups`` is asked for again, a few times: the lighthouse may
      not know the other groups yet.
    - Its server listens at ``hostname`` alone. TorchFT's accepts every client on all interfaces.
    - ``has_committed`` says whether a step was committed since the last quorum began.
    """

    def __init__(self, *, patience_seconds: float, **arguments: Any) -> None:
        address = arguments["hostname"]

        def serve(*, bind: str, **options: Any) -> Any:
            return ManagerServer(bind=f"{address}:{bind.rpartition(':')[2]}", **options)

        with _instead(torchft.manager, "ManagerServer", serve):
            super().__init__(use_async_quorum=False, **arguments)
        self.patience_seconds = patience_seconds
        self.least_step = 0
        self.least_groups = 1
        self.has_committed = False
        self.is_given_up = False
        # Gradients of parameters that this process has not used, averaged over the groups. None if
        # they are not collected.
        self.not_used: dict[torch.Tensor, torch.Tensor] | None = None
        global _manager
        _manager = self

    @property
    def quorum_number(self) -> int:
        """The number of the quorum. It changes whenever the groups that take part change."""
        return int(self._quorum_id)

    def give_up(self) -> None:
        """End all calls that wait for a quorum, because the lighthouse is dead."""
        self.is_given_up = True
        # Without a reference the server ends, and so do the calls that wait for its answer.
        self._manager = None

    def start_quorum(self, *arguments: Any, **options: Any) -> None:
        """Wait for the quorum of the next step, and load the newest parameters if this group is
        behind.

        Raises LighthouseGone after `give_up`. Raises BehindOthers if this group is behind steps
        that others committed, and no group is left to load them from.
        """
        self.has_committed = False
        deadline, num_tries = unheld_time() + self.patience_seconds, 0
        while True:
            try:
                super().start_quorum(*arguments, **options)
                num_tries += 1
                are_enough = self.num_participants() >= self.least_groups
                if are_enough or self.errored() is not None or num_tries >= _NUM_TRIES:
                    break
            except (RuntimeError, TimeoutError) as error:
                if self.is_given_up:
                    raise LighthouseGone("the lighthouse has died") from error
                self._quorum_future = None
                if unheld_time() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
        if self.errored() is None and self.current_step() < self.least_step:
            raise BehindOthers(
                f"alone at step {self.current_step()}, where others had committed {self.least_step}"
            )

    def begin_average(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Begin to average a tensor in place over the groups that take part.

        Return a function that waits for the result. An error is reported to the manager, as by
        ``allreduce``; the tensor is of no use then. Unlike ``allreduce`` it sets no timer in
        another thread, which on a CPU costs more than to send a small message; gloo has its own
        timeout.
        """
        if tensor.device.type != "cpu" and self._goes_by_host:
            copy = tensor.cpu()
            wait_for_copy = self.begin_average(copy)

            def put_back() -> None:
                wait_for_copy()
                tensor.copy_(copy)

            return put_back
        if tensor.device.type != "cpu":
            managed = self.allreduce(tensor)
            return lambda: managed.wait()
        if self.errored():
            return _nothing
        if not self.is_participating():
            tensor.zero_()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        try:
            work = self._pg.allreduce([tensor], options)
        except Exception as error:
            self.report_error(error)
            return _nothing

        def wait() -> None:
            try:
                work.wait()
            except Exception as error:
                self.report_error(error)
            else:
                tensor.div_(self.num_participants())

        return wait

    @property
    def _goes_by_host(self) -> bool:
        """Whether tensors on a GPU are copied to the host's memory to be averaged."""
        return "gloo" in self._pg.getBackendName()

    def allreduce(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """Average as TorchFT does, also a tensor on a GPU over gloo, for processes that share a
        GPU.
        """
        if tensor.device.type == "cpu" or not self._goes_by_host:
            return super().allreduce(tensor, *arguments, **options)
        copy = tensor.cpu()
        work = super().allreduce(copy, *arguments, **options)
        work.wait()
        tensor.copy_(copy)
        return work

    def should_commit(self, *arguments: Any, **options: Any) -> bool:
        """Return whether all ranks of this group may take the step."""
        self.has_committed = bool(super().should_commit(*arguments, **options))
        return self.has_committed


def _nothing() -> None:
    """Do nothing: the wait of an average that failed to begin."""


class Bell(Actor):
    """An actor beside a trainer, on a thread of its own, which is reached while the trainer
    waits.
    """

    @endpoint
    def lighthouse_is_gone(self) -> None:
        """End all calls of the trainer that wait for the dead lighthouse."""
        if _manager is not None:
            _manager.give_up()


@dataclass(frozen=True)
class _InMemory:
    """Stands for a tensor that the receiver reads from the sender's memory."""

    buffer: RDMABuffer
    dtype: torch.dtype
    shape: torch.Size


class ReachableTransport(HTTPTransport):  # type: ignore[misc]
    """Serves checkpoints at one address of this machine.

    TorchFT's transport serves on all interfaces, and its URL contains the hostname, which need not
    resolve.

    Large tensors are not sent. A process that heals reads them from this process's memory
    (RDMABuffer). It keeps the connection open until it is done, because the parameters must not
    change before. If that fails, or would go over TCP, it fetches everything over HTTP.
    """

    def __init__(self, timeout: timedelta, address: str) -> None:
        self._address = address
        self._buffers: list[RDMABuffer] = []
        self._in_memory = b""
        # TorchFT waits for the quorum on its own thread; buffers made there belong to this actor.
        self._context = contextvars.copy_context()

        class Server(ThreadingHTTPServer):
            request_queue_size = 1024

            def __init__(self, bind: tuple[str, int], *arguments: Any) -> None:
                super().__init__((address, bind[1]), *arguments)

        with _instead(http_transport, "_IPv6HTTPServer", Server):
            super().__init__(timeout=timeout, num_chunks=0)
        # The handler would print a line to stderr for each request.
        handler = self._server.RequestHandlerClass
        handler.log_message = lambda *arguments: None
        serve = handler.do_GET
        handler.do_GET = lambda request: self._serve_memory(request) or serve(request)

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        """Offer the checkpoint to other groups, until ``disallow_checkpoint``."""
        self._context.copy().run(self._register, state_dict)
        super().send_checkpoint(dst_ranks, step, state_dict, timeout)

    def _register(self, state_dict: Any) -> None:
        def place_of(value: Any) -> Any:
            if type(value) is not torch.Tensor or value.device.type != "cpu":
                return value
            is_large = value.numel() * value.element_size() >= _READ_BYTES
            if value.layout != torch.strided or not is_large:
                return value
            buffer = RDMABuffer(value)
            self._buffers.append(buffer)
            return _InMemory(buffer, value.dtype, value.shape)

        places = tree_map(place_of, state_dict)
        self._in_memory = pickle.dumps(places) if self._buffers else b""

    def disallow_checkpoint(self) -> None:
        """Stop offering the checkpoint. Returns when the groups that read it are done."""
        super().disallow_checkpoint()
        for buffer in self._buffers:
            buffer.drop().get()
        self._buffers.clear()
        self._in_memory = b""

    def _serve_memory(self, request: Any) -> bool:
        """Answer a request for the memory locations of the tensors.

        Return False for other requests. The answer lasts until the receiver closes the connection.
        """
        if not request.path.endswith("/memory"):
            return False
        # A receiver that goes away, or asks when nothing may be read, gets no answer.
        with contextlib.suppress(OSError, ValueError), self._checkpoint_lock.r_lock():
            step = int(request.path.split("/")[2])
            if step != self._step or not self._in_memory:
                request.send_error(404, f"nothing of step {step} is to be read here")
                return True
            request.send_response(200)
            request.send_header("Content-Length", str(len(self._in_memory) + 1))
            request.end_headers()
            # The receiver leaves the last byte unread: its HTTP client would close the connection
            # after a whole answer.
            request.wfile.write(self._in_memory + b".")
            request.wfile.flush()
            request.rfile.read(1)
        return True

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Fetch the checkpoint of a peer, from its memory if possible, and else over HTTP."""
        with warnings.catch_warnings():
            # The received tensors are never written to.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            try:
                return self._context.copy().run(self._read, f"{metadata}{step}/memory", timeout)
            except urllib.error.HTTPError as error:
                error.close()  # There is nothing large to read.
            except (OSError, RemoteMemoryError) as error:
                _log.info("what is healed from is fetched over HTTP: %s", error)
            return super().recv_checkpoint(src_rank, metadata, step, timeout)

    def _read(self, url: str, timeout: timedelta) -> Any:
        seconds = timeout.total_seconds()
        with urllib.request.urlopen(url, timeout=seconds) as response:
            places = pickle.loads(response.read(int(response.headers["Content-Length"]) - 1))
            reads = RDMAAction()

            def read(value: Any) -> Any:
                if not isinstance(value, _InMemory):
                    return value
                if value.buffer.backend in ("tcp", "none"):
                    raise ConnectionError("over sockets it is no faster than HTTP")
                into = torch.empty(value.shape, dtype=value.dtype)
                reads.read_remote(into, value.buffer)
                return into

            state = tree_map(read, places)
            reads.submit(timeout=seconds).get()
        return state

    def address(self) -> str:
        """Return the URL from which peers fetch; they append the step."""
        port = self._server.socket.getsockname()[1]
        return f"http://{self._address}:{port}/checkpoint/"

    def shutdown(self, wait: bool = True) -> None:
        """End the server and its thread, and close its port, whatever ``wait`` says."""
        super().shutdown(wait=True)
        self._server.server_close()


class DistributedDataParallel(torchft.DistributedDataParallel):  # type: ignore[misc]
    """Averages gradients within the group, then over the groups.

    TorchFT's hook averages over the groups alone. In 0.2 it asserts that this succeeded, so that a
    group died when another one did; here ``should_commit`` checks it.

    DDP leaves unused parameters without a gradient, even if another group has one. The manager's
    ``not_used`` collects the groups' gradients of these.
    """

    @staticmethod
    def _comm_hook(
        state: CarefulManager, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        average_in_group(buffer)
        state.begin_average(buffer)()
        if state.not_used is not None:
            for parameter, mean in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if parameter.grad is None:
                    state.not_used[parameter] = mean.detach().clone()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


def silence_logs() -> None:
    """Silence TorchFT's logs: a traceback for each fault that it survives, and empty lines."""
    for name in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def average_in_group(tensor: torch.Tensor) -> None:
    """Average a tensor in place over the ranks of this group.

    Does nothing in a group of one rank.
    """
    if dist.is_initialized():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
