"""Tensors as arguments of endpoints: actors in the same procs get the local tensors, not copies.

A tensor that is pickled for a call becomes a ticket. In its stream each worker puts the local
tensor under that ticket; the actor takes it when its call is unpickled. The worker then waits until
the call has ended, so that the stream's later operations on the tensor come after the actor's. A
call that is not answered (`broadcast`) gets copies, since nobody learns of its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.actor import lending
from monarch.tensors.client.issuing import builtin
from monarch.tensors.client.refusals import find_problem, incorrect
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.worker.arrivals import arrive


class _TensorLoan:
    """The loan of one tensor to the receivers of one message."""

    def __init__(self, tensor: Tensor, ranks: tuple[int, ...], answers: bool) -> None:
        self._mesh = tensor.mesh
        self._client = tensor.mesh.client
        self._stream = tensor.stream
        #: The ranks of the receivers.
        self._ranks = ranks
        self._answers = answers
        #: The ticket under which workers put the local tensors.
        self.ticket = self._client.next_ticket()
        #: The ticket that is filled when the call ends; 0 if nobody learns of its end.
        self.end = self._client.next_ticket() if answers else 0
        builtin(self._mesh, self._stream, ("lend", ranks, not answers), [tensor], [self.ticket])

    def is_dumped(self) -> None:
        if self._answers:
            builtin(self._mesh, self._stream, ("await_actor", self._ranks), scalars=[self.end])
        self._client.flush()

    def has_ended(self, answer: Any) -> None:
        if self._answers and has_failed(answer):
            # The call may not have reached the actor, and the stream must not wait for ever.
            self._client.desk.give_up.broadcast([self.end], None)


def has_failed(answer: Any) -> bool:
    """Return, from the answer to a call, whether some receiver may not have run the call."""
    if getattr(answer, "failure", None) is not None:
        return True
    return any(getattr(reply, "failed", True) for reply in getattr(answer, "answers", [answer]))


def lend_to_actors(tensor: Tensor) -> Any:
    """Return the object that is pickled in place of a tensor when an endpoint is called.

    Raises ``TypeError`` if no endpoint is being called, and ``ValueError`` if an actor is not in a
    proc of the tensor's mesh.
    """
    message = lending.being_pickled()
    if message is None:
        raise TypeError(
            "a distributed tensor stays with its controller, and its values with its workers: "
            "send what fetch_shard(t).result() gives, or hand it to an endpoint of actors on the "
            "same procs"
        )
    if tensor.mesh.client.recording is not None:
        raise NotImplementedError(
            "a compiled function cannot hand tensors to actors: it is not called when it is "
            "replayed. Return the tensor, and hand it over outside"
        )
    problem = find_problem(tensor, tensor.mesh, tensor.stream)
    if problem is not None:
        raise incorrect("endpoint", (tensor,), {}, lambda _: problem)
    if message.answers:
        assert tensor.mesh.client.desk is not None  # Spawned before a stream can wait.
    loan = _TensorLoan(tensor, ranks_of(tensor.mesh, message.uids), message.answers)
    message.loans.append(loan)
    return arrive, (loan.ticket, loan.end)


def ranks_of(mesh: Any, uids: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks of these processes; raise ``ValueError`` if a process is not in ``mesh``."""
    ranks = [mesh.client.ranks_of_procs.get(uid) for uid in uids]
    members = set(mesh.processes)
    if any(rank not in members for rank in ranks):
        raise ValueError(
            "monarch Tensors sent to an actor must be located on the same process as the actor. "
            f"The tensor is on {mesh}: call the actors that are on its procs (a slice of them), or "
            "send values (fetch_shard(t).result())"
        )
    return tuple(rank for rank in ranks if rank is not None)
