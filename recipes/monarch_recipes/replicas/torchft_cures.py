"""TorchFT with what it needs to survive every fault; each cure says what it cures.

A cure goes by what the installed TorchFT has, not by its version. How a process group meets anew
(`configure` in 0.2, `reconfigure` in 0.3) is between it and TorchFT's manager: nothing here calls
it. Where a name is gone that a cure needs, `check_parts` says so. Run with 0.2.0; of 0.3, which
could not be had, only the contract of its process groups, by a fake.

All of it works unchanged with NCCL: only the process group that the manager is given differs. Where
that is gloo's, and the model on a GPU, what is averaged goes by copies in the host's memory.
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
# A lighthouse hears of a member ten times a second. Counted, so that all ranks of a group give up
# in the same try: a quorum is had by all of them together.
_NUM_TRIES = 20
_READ_BYTES = 64 * 1024
"""From here on a tensor is read from where it lies."""

_log = logging.getLogger(__name__)
# What is changed here, or looked into: a server that would let everybody in, and how a step ends.
_PARTS = (
    (torchft.manager, "ManagerServer"),
    (http_transport, "_IPv6HTTPServer"),
    (Manager, "_apply_pending_state_dict"),
    (Manager, "start_quorum"),
    (Manager, "should_commit"),
    (HTTPTransport, "disallow_checkpoint"),
)


def check_parts(parts: Sequence[tuple[object, str]] = _PARTS) -> None:
    """Raise JobError where TorchFT lacks what a cure is for: it may be needed no more, and must not
    be left out unseen."""
    gone = [name for owner, name in parts if not hasattr(owner, name)]
    if gone:
        raise JobError(
            f"torchft {metadata.version('torchft')} has no {', '.join(gone)}, which the recipe "
            "fault_tolerant changes: pip install 'torchft>=0.2,<0.3'"
        )


check_parts()


class BehindOthers(RuntimeError):
    """This group is behind what others have committed, and there is no group to heal from.

    It must not train: it would end with parameters of its own.
    """


class LighthouseGone(RuntimeError):
    """The lighthouse has died. Make a new manager, with a new store, once there is another."""


@contextlib.contextmanager
def _instead(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Within, the module has another value by this name."""
    was = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, was)


class CarefulManager(Manager):  # type: ignore[misc]
    """A manager with a synchronous quorum, after which the parameters are the newest there are.

    - A new lighthouse counts its quorums from 1 again. A manager that knew the old one takes the
      new first for its own, or meets the others where they met long ago, and they wait for each
      other in vain. So ``give_up``, which any thread may call, ends whatever waits for the old one:
      what this group does then raises.
    - A quorum that fails for another reason is asked for again for ``patience_seconds``. As it is,
      the manager would raise that first error for ever.
    - A group that comes back when all others have finished would train alone from where it
      is. Here the quorum raises BehindOthers.
    - A quorum of fewer than ``least_groups`` is asked for again, a few times: a lighthouse that has
      not heard of the others yet would let one go ahead without them.
    - Its server listens at ``hostname`` alone. As it is, it lets in every client that connects to
      any of this machine's interfaces.
    - It tells of heals and commits: ``has_healed``, ``has_committed``, since the last quorum began.
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
        self.has_healed = False
        self.has_committed = False
        self.is_given_up = False
        # Means over the groups, of parameters that this process has not used; None: nobody asks.
        self.not_used: dict[torch.Tensor, torch.Tensor] | None = None
        _CurrentManager.manager = self

    @property
    def quorum_number(self) -> int:
        """Another one whenever other groups take part."""
        return int(self._quorum_id)

    def give_up(self) -> None:
        """The lighthouse is gone; calls that wait for a quorum are let go."""
        self.is_given_up = True
        # The server ends with its last reference, and with it the calls that it has not answered.
        self._manager = None

    def start_quorum(self, *arguments: Any, **options: Any) -> None:
        """Wait for the others; afterwards the newest parameters are here."""
        self.has_healed = self.has_committed = False
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

    def _apply_pending_state_dict(self) -> None:
        self.has_healed = self._pending_state_dict is not None
        super()._apply_pending_state_dict()

    def begin_average(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Begin to average over the groups that take part, in place; call what is returned to wait
        for it. An error is reported, as by ``allreduce``, and the tensor is of no use then.

        The work that ``allreduce`` returns times its future in another thread. On a CPU that costs
        more than a small message, and is not needed: gloo keeps the time itself.
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
        """Whether what is on a GPU is copied to the host's memory to be averaged."""
        return "gloo" in self._pg.getBackendName()

    def allreduce(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """TorchFT's, on a GPU over gloo too, where processes share one."""
        if tensor.device.type == "cpu" or not self._goes_by_host:
            return super().allreduce(tensor, *arguments, **options)
        copy = tensor.cpu()
        work = super().allreduce(copy, *arguments, **options)
        work.wait()
        tensor.copy_(copy)
        return work

    def should_commit(self, *arguments: Any, **options: Any) -> bool:
        """Whether all of this group may take the step."""
        self.has_committed = bool(super().should_commit(*arguments, **options))
        return self.has_committed


def _nothing() -> None:
    """Takes the place of a wait after an error: there is nothing to wait for."""


class _CurrentManager:
    """The manager that this process has now."""

    manager: CarefulManager | None = None


class Bell(Actor):
    """Beside a trainer, in a thread of its own: so it can be told something while it waits."""

    @endpoint
    def lighthouse_is_gone(self) -> None:
        """Let go of whatever waits for it."""
        if _CurrentManager.manager is not None:
            _CurrentManager.manager.give_up()


@dataclass(frozen=True)
class _InMemory:
    """A tensor that the other end reads from where it lies."""

    buffer: RDMABuffer
    dtype: torch.dtype
    shape: torch.Size


class ReachableTransport(HTTPTransport):  # type: ignore[misc]
    """Serves checkpoints at one address of this machine, and nowhere else.

    TorchFT's own serves every client, on all interfaces, and names the hostname, which need not
    resolve.

    Large tensors are not sent: a process that heals reads them from this process's memory
    (RDMABuffer), and keeps the connection until it has, as the parameters must not change before.
    Where that fails, or would go over TCP, it fetches all of it over HTTP.
    """

    def __init__(self, timeout: timedelta, address: str) -> None:
        self._address = address
        self._buffers: list[RDMABuffer] = []
        self._in_memory = b""
        # The quorum is had in a thread of its own; buffers registered there are this actor's.
        self._context = contextvars.copy_context()

        class Server(ThreadingHTTPServer):
            request_queue_size = 1024

            def __init__(self, where: tuple[str, int], *arguments: Any) -> None:
                super().__init__((address, where[1]), *arguments)

        with _instead(http_transport, "_IPv6HTTPServer", Server):
            super().__init__(timeout=timeout, num_chunks=0)
        # A line on stderr for each request.
        handler = self._server.RequestHandlerClass
        handler.log_message = lambda *arguments: None
        serve = handler.do_GET
        handler.do_GET = lambda request: self._serve_memory(request) or serve(request)

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        """Serve it until ``disallow_checkpoint``."""
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
        """Offer the parameters to no other group any more; returns when those that read them are
        through."""
        super().disallow_checkpoint()
        for buffer in self._buffers:
            buffer.drop().get()
        self._buffers.clear()
        self._in_memory = b""

    def _serve_memory(self, request: Any) -> bool:
        """Answer if this is what was asked for: where everything lies, until the other end closes
        the connection."""
        if not request.path.endswith("/memory"):
            return False
        # A peer that goes away, or comes when nothing may be read, gets no answer.
        with contextlib.suppress(OSError, ValueError), self._checkpoint_lock.r_lock():
            step = int(request.path.split("/")[2])
            if step != self._step or not self._in_memory:
                request.send_error(404, f"nothing of step {step} is to be read here")
                return True
            request.send_response(200)
            request.send_header("Content-Length", str(len(self._in_memory) + 1))
            request.end_headers()
            # The last byte is not read there: a client with a whole answer gives up the connection.
            request.wfile.write(self._in_memory + b".")
            request.wfile.flush()
            request.rfile.read(1)
        return True

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Returns the checkpoint that a peer serves."""
        with warnings.catch_warnings():
            # Its tensors are only copied from.
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
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            places = pickle.loads(answer.read(int(answer.headers["Content-Length"]) - 1))
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
        """The URL from which peers fetch; the step comes after it."""
        port = self._server.socket.getsockname()[1]
        return f"http://{self._address}:{port}/checkpoint/"

    def shutdown(self, wait: bool = True) -> None:
        """End the server. As it is, not waiting leaves its thread and its port."""
        super().shutdown(wait=True)
        self._server.server_close()


class DistributedDataParallel(torchft.DistributedDataParallel):  # type: ignore[misc]
    """Averages gradients within the group, then over the groups.

    Its hook averages over the groups alone, and in 0.2 asserts that this went well, so that a
    group died of another's death. That is for ``should_commit`` to ask.

    It looks for parameters that were not used, and leaves these without a gradient, also where
    another group has one: ``not_used`` of the manager keeps what the groups have of them.
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
    """The mean over the ranks of this group, in place; a group of one has no process group."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
