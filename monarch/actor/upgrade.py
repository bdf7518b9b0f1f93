"""``ActorMesh.upgrade``: a new class for live actors whose class came from a script or notebook."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from monarch.actor.future import Future, make_future, value_of_outcome
from monarch.actor.mesh_ref import MeshRef
from monarch.errors import ReloadRefused
from monarch.runtime import process
from monarch.runtime.cells.endpoint_spec import check_actor_class, endpoint_specs, is_async_actor
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.driver import CodeSwitch
from monarch.runtime.workspace.code_switch.proposing import Proposing, Purpose
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan, Upgrade
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.by_value import dump_afresh, dump_order, is_by_value

_BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.05

_latest: Promise[Any] | None = None
_lock = threading.Lock()


def upgrade(
    ref: MeshRef, new: type, is_reserved: Callable[[str], bool], made: Future[None]
) -> Future[None]:
    """Replace the class of live actors, as ``ActorMesh.upgrade`` describes.

    ``is_reserved`` tells which names a mesh needs for itself; ``made`` is done once all members
    have been constructed.
    """
    _check(ref.cls, new)
    check_actor_class(new, is_reserved)
    agent = process.current()
    switch = session_of(agent).reload
    # Below 0, because it is no generation of a workspace.
    plan = ReloadPlan(-random.getrandbits(62) - 1, "", "patch")
    plan.upgrade = Upgrade(ref.uid, dump_afresh(new))
    done: Promise[tuple[None, BaseException | None]] = Promise()
    previous = _put_last(done)

    def run() -> None:
        error: BaseException | None = None
        try:
            made.get()
            if previous is not None:
                previous.wait()
            outcome = _in_turn(switch, plan, ref, agent.node.uid)
            if outcome.refused:
                error = _refusal(ref, outcome)
            else:
                agent.kept_spawns.upgraded(ref.uid, functools.partial(dump_order, ref.cls))
        except Exception as raised:
            error = raised
        done.set((None, error))

    threading.Thread(target=run, name="monarch-upgrade", daemon=True).start()
    return make_future(done, value_of_outcome)


def _put_last(done: Promise[Any]) -> Promise[Any] | None:
    """Make this upgrade the latest one. Return the one before it, which must finish first.

    None if this is the first upgrade.
    """
    global _latest
    with _lock:
        previous, _latest = _latest, done
    return previous


def _check(live: type, new: type) -> None:
    if not isinstance(new, type):
        raise TypeError(f"upgrade() takes the new class, not {new!r}")
    if new.__name__ != live.__name__:
        raise ValueError(
            f"these are actors of {live.__qualname__}, and {new.__qualname__} is another class: an "
            "upgrade is a new version of the same class, under the same name"
        )
    if not is_by_value(live):
        raise ValueError(
            f"{live.__qualname__} was imported from {live.__module__}: save its file and call "
            "sync_workspace(), which reloads it; upgrade() is for classes of scripts and notebooks"
        )
    if not is_by_value(new):
        raise ValueError(
            f"the new {new.__qualname__} was imported from {new.__module__}, the actors' class was "
            "not: spawn a new mesh of it"
        )
    if endpoint_specs(new) and is_async_actor(new) != is_async_actor(live):
        kinds = ("def", "async def") if is_async_actor(new) else ("async def", "def")
        raise ValueError(
            f"the endpoints of {live.__qualname__} were `{kinds[0]}` and are `{kinds[1]}` now; "
            "live actors stay on their thread or loop: spawn a new mesh"
        )


def _in_turn(switch: CodeSwitch, plan: ReloadPlan, ref: MeshRef, own: Uid) -> ReloadOutcome:
    """Upgrade the members, after other changes of code that are in progress."""
    deadline = time.monotonic() + _BUSY_SECONDS
    with switch.pushing(), switch.alone:
        while True:
            outcome = _carry_out(switch, plan, ref, own)
            if not outcome.busy:
                return outcome
            if time.monotonic() > deadline:
                outcome.refused.append(RefusedFile(ref.name, f"{outcome.busy}: try again"))
                return outcome
            time.sleep(_PAUSE_SECONDS)


def _carry_out(switch: CodeSwitch, plan: ReloadPlan, ref: MeshRef, own: Uid) -> ReloadOutcome:
    """Prepare all members, and then switch all of them or none."""
    # Actors in this process have the same class object as its references.
    others = [proc for proc in ref.procs if proc.uid != own]
    proposing = Proposing([_Members(switch, ref, others)], plan, Purpose())
    proposing.run()
    if proposing.error is not None:
        raise proposing.error
    return proposing.outcome


class _Members:
    """The procs of a mesh, as a participant of a switch.

    They switch alone, without the procs that they have spawned.
    """

    def __init__(self, switch: CodeSwitch, ref: MeshRef, procs: Sequence[ProcAddress]) -> None:
        self._switch = switch
        self._ref = ref
        self._procs = procs
        self.uid = switch.uid
        self.switch, self.call_off, self.audit = switch.switch, switch.call_off, switch.audit

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        return self._switch.prepare_on(
            plan,
            self._procs,
            lambda plan: self._switch.local_reload.prepare_class(plan, self._ref.cls),
        )


def _refusal(ref: MeshRef, outcome: ReloadOutcome) -> ReloadRefused:
    by_text: dict[str, list[str]] = {}
    for refused in outcome.refused:
        by_text.setdefault(str(refused), []).append(refused.rank)
    reasons = [f"{text}\n(said by {', '.join(ranks[:4])})" for text, ranks in by_text.items()]
    return ReloadRefused(
        "\n".join([f"{ref.name} was not upgraded, all ranks run the old class:", *reasons])
    )
