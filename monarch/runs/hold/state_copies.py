"""Copies an actor's state, so that it can be restored when a step on new code fails.

The state is everything that can be reached from the actor's attributes and from the names of the
user's modules (see ``state_walk``), and the random states of the process. FSDP's modules get their
shards back (see ``sharded_modules``). An actor whose state is also in objects of libraries, which
are not searched, names them: ``__roots__(self)`` returns them by name. An actor may also define
``__keep__(self)``, which returns a copy, and ``__restore__(self, kept)``. Nothing outside the
process can be restored, such as files, iterators, or messages that were sent.

``watch`` is for every call, for which ``keep`` would cost too much: it copies small state, and
records facts of large tensors and arrays that must not change. Most calls that fail do so before
they have changed any of these; if they have, the state cannot be restored.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from monarch.runs.hold.copy_beside import CopyBeside
from monarch.runs.hold.sharded_modules import keep_sharded_modules
from monarch.runs.hold.state_walk import Walk, users_modules
from monarch.runs.hold.tensor_copies import Changed as Changed
from monarch.runs.hold.tensor_copies import Copies, LaterCopies, Notes, ValueSamples, tensors_of

_MOST_LOOKED_INTO = 1000  # elements of a container, in each call
_MOST_OBJECTS = 20_000
SAMPLED = "all bits of weights and optimizer"

BeginCopy = Callable[[list[Any]], "CopyBeside | None"]


class PutBack(Protocol):
    """A function that restores the state, as often as it is called.

    It returns descriptions of the objects that it could not restore. ``SAMPLED`` is among them if
    it compared only samples of the weights, and torch's counts of writes, to see that they are
    unchanged.
    """

    def __call__(self, *, is_same_code: bool = True) -> list[str]: ...


def keep(instance: object, begin: BeginCopy | None = None) -> PutBack:
    """Copy the state; the returned function restores it.

    ``begin`` starts a copy of the optimizers' tensors in the host's memory, if it can: it gets
    these tensors, parameters first. Without it, they are copied at once.
    """
    keep_itself: Any = getattr(instance, "__keep__", None)
    later = None if begin is None or keep_itself is not None else LaterCopies()
    copies = later or Copies()
    copies.undos += _random_states()
    walk = Walk(copies)
    if keep_itself is not None:
        kept = keep_itself()
        copies.undos.append(lambda: instance.__restore__(kept))  # type: ignore[attr-defined]
    else:
        _look_at_all(walk, instance)
    walk.finish()
    if begin is not None and (later is not None or hasattr(instance, "__state__")):
        copy = begin(held_by_optimizers(instance) if later is None else later.held())
        if later is not None:
            later.finish(copy)
    return _putting_back(walk, copies)


def held_by_optimizers(instance: object) -> list[Any]:
    """Return the tensors of an actor's optimizers, parameters first."""
    optimizers = _Optimizers()
    walk = Walk(optimizers, most_looked_into=_MOST_LOOKED_INTO, most_objects=_MOST_OBJECTS)
    _look_at_actor(walk, instance)
    walk.finish()
    return [*optimizers.parameters, *optimizers.moments]


class _Optimizers(Copies):
    """Collects the tensors of the optimizers that a walk finds. It makes no copies."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[Any] = []
        self.moments: list[Any] = []

    def tensor(self, tensor: Any) -> tuple[()]:
        return ()

    def array(self, array: Any) -> None: ...

    def optimizer(self, optimizer: Any) -> None:
        parameters, moments = tensors_of(optimizer)
        self.parameters += parameters
        self.moments += moments

    def told(self, value: Any) -> Callable[[], object]:
        return lambda: None


def watch(
    instance: object, samples: ValueSamples | None = None, call_seconds: float = 0.0
) -> PutBack | None:
    """Copy the small parts of the state, and record facts about the rest, so that a change of it is
    noticed.

    The returned function restores the state, or raises ``Changed``. It is ``None`` if the actor
    keeps its state itself, by ``__keep__``. If the caller passes the same ``samples`` for each
    call, the next calls are cheaper. Comparing large tensors may take a small share of
    ``call_seconds``, the time of a call.
    """
    if hasattr(instance, "__keep__"):
        return None
    notes = Notes(samples or ValueSamples(), call_seconds)
    notes.undos += _random_states()
    walk = Walk(notes, most_looked_into=_MOST_LOOKED_INTO, most_objects=_MOST_OBJECTS)
    _look_at_all(walk, instance)
    walk.finish()
    notes.finish()
    return _putting_back(walk, notes)


def _look_at_all(walk: Walk, instance: object) -> None:
    _look_at_actor(walk, instance)
    for module in users_modules():
        walk.look_into_globals(module)


def _look_at_actor(walk: Walk, instance: object) -> None:
    roots: Any = getattr(instance, "__roots__", dict)
    for name, root in roots().items():
        walk.look_into(root, f"self.{name}")
    walk.look_into(instance, "self")


def _putting_back(walk: Walk, copies: Copies) -> PutBack:
    put_back_shards = keep_sharded_modules()

    def put_back(*, is_same_code: bool = True) -> list[str]:
        for check in copies.checks:
            check()
        if put_back_shards is not None:
            put_back_shards()
        unkept = walk.put_back(is_same_code=is_same_code)
        for undo in copies.undos:
            undo()
        return [SAMPLED, *unkept] if copies.is_sampled else unkept

    return put_back


def _random_states() -> Iterator[Callable[[], object]]:
    python_state = random.getstate()
    yield lambda: random.setstate(python_state)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy_state = numpy.random.get_state()
        yield lambda: numpy.random.set_state(numpy_state)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        on_cpu = torch.get_rng_state()
        yield lambda: torch.set_rng_state(on_cpu)
        if torch.cuda.is_initialized():
            # By number: each thread has its own current device, and another thread may restore it.
            device = torch.cuda.current_device()
            on_gpu = torch.cuda.get_rng_state(device)
            yield lambda: torch.cuda.set_rng_state(on_gpu, device)
