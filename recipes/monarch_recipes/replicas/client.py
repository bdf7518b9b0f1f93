"""The client's part of a run.

It writes the controller's events into the record, and sends Ctrl-C and edits of the config to the
controller.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from monarch.actor import Actor, Channel, HostMesh, PortReceiver, this_proc
from monarch.runs import Record
from monarch.runs.hold.hold_report import HoldReport
from monarch.runtime import process
from monarch_recipes.replicas.controller import Controller
from monarch_recipes.replicas.groups import Limits, StoppedUnsaved
from monarch_recipes.replicas.hold import GroupsHold
from monarch_recipes.replicas.messages import (
    Failed,
    Finished,
    FlushRequest,
    GroupsOutcome,
    Holds,
    RunEvent,
    RunMessage,
    StepMetrics,
)

_LOOK_SECONDS = 0.5


def train_groups(
    trainer_class: type[Actor], config: Any, hosts: HostMesh, record: Record
) -> GroupsOutcome:
    """Train to the end, whichever group dies. ``config`` must have the fields of `Limits`.

    After Ctrl-C the groups finish a step and save. A second Ctrl-C ends everything at once.
    """
    record.edits.begin(process.current().generation)
    while True:
        try:
            return _train_on(hosts, trainer_class, config, record)
        except _Moved as moved:
            hosts, config = moved.hosts, dataclasses.replace(record.live(config), resume="auto")


class _Moved(Exception):
    """None of the previous hosts is left, because the allocation was replaced.

    All groups begin again on ``hosts``, from the last checkpoint.
    """

    def __init__(self, hosts: HostMesh) -> None:
        super().__init__(hosts)
        self.hosts = hosts


def _train_on(
    hosts: HostMesh, trainer_class: type[Actor], config: Any, record: Record
) -> GroupsOutcome:
    port, news = Channel[Any].open()
    limits = Limits.of(config)
    hold = GroupsHold(
        record.edits, HoldReport(None, hosts), port, limits.step_timeout_seconds,
        is_local=getattr(config, "algorithm", "ddp") != "ddp",
    )  # fmt: skip
    hold.edit_patience_seconds = getattr(config, "edit_patience_seconds", None)
    controller = this_proc().spawn(
        "controller", Controller, limits, trainer_class, config, hosts,
        procs_per_host=record.procs_per_host, checkpoint_dir=record.checkpoint_dir.resolve(),
        news=port, hold=hold,
    )  # fmt: skip
    controller.begin.call_one().get()
    asked_to_stop = is_interrupted = False
    held, left = HoldReport(record, hosts), hosts
    warnings = hosts.on_warning(record.warned)
    said: Any = None
    listening = contextlib.ExitStack()  # while a step on new code takes long
    is_listening = False
    try:
        while True:
            try:
                # A message that Ctrl-C kept from being written comes first.
                said = _next_news(news) if said is None else said
                if isinstance(said, Finished):
                    break
                if isinstance(said, Failed):
                    if isinstance(said.error, StoppedUnsaved):
                        raise KeyboardInterrupt(str(said.error))
                    _look_after(left, record)
                    raise said.error
                _write_down(said, record)
                noted, said = said, None
                if isinstance(noted, RunEvent) and "answers" in noted.data and not is_listening:
                    listening.enter_context(held.listening())
                    is_listening = True
                elif isinstance(noted, StepMetrics | Holds) and is_listening:
                    listening.close()
                    is_listening = False
                for answer in held.answers() if is_listening else ():
                    controller.answer_slow.call_one(answer).get()
                if isinstance(noted, Holds):
                    if noted.failure is not None:
                        held.answer(
                            noted.failure, record.edits, in_place=noted.in_place,
                            state=noted.state, begins_anew=noted.begins_anew,
                        )  # fmt: skip
                    else:
                        held.over(noted.doing, noted.generation)
                if isinstance(noted, RunEvent) and noted.kind == "died":
                    # Before its restart, which waits until this is written down.
                    now = _look_after(left, record)
                    if now is not left:
                        if not now._places_in(hosts):  # Some hosts have new addresses.
                            warnings.close()
                            hosts = hosts._with(left._places_in(hosts), now)
                            warnings = hosts.on_warning(record.warned)
                        left = now
                        controller.go_on_with.call_one(hosts, left._places_in(hosts)).get()
                if record.is_stopping and not asked_to_stop:
                    asked_to_stop = True
                    controller.stop_soon.call_one().get()
                if record.take_save_wanted():
                    controller.save_soon.call_one().get()
                before, config = config, record.live(config)
                if config != before:
                    change = controller.reconfigure.call_one(
                        config.learning_rate, config.fingerprint_every, config.evaluate_every,
                        config.checkpoint_every, config.extras,
                        getattr(config, "edit_patience_seconds", None),
                    )  # fmt: skip
                    change.get()
            except KeyboardInterrupt:
                if record.is_stopping:
                    raise
                record.stop()
                is_interrupted = True
    finally:
        listening.close()
        warnings.close()
        controller.stop().get()
    if is_interrupted:
        raise KeyboardInterrupt
    return said.outcome


def _look_after(hosts: HostMesh, record: Record) -> HostMesh:
    """Return the hosts to continue with after a loss: the same, some of them, or with replacements.

    Raises _Moved if all are new, and an error if none are left.
    """
    now = record.hosts_after_loss(hosts, any_number=True)
    if now is not hosts and not now._places_in(hosts):
        is_partly_there = len(now) == len(hosts) and set(now._hosts) & set(hosts._hosts)
        if not is_partly_there:
            raise _Moved(now)
    return now


def _next_news(news: PortReceiver[Any]) -> Any:
    """Return the next message of the controller; None if none comes within half a second."""
    try:
        return news.recv().get(timeout=_LOOK_SECONDS)
    except TimeoutError:
        return None


def _write_down(
    said: StepMetrics | RunEvent | RunMessage | FlushRequest | Holds | None, record: Record
) -> None:
    if isinstance(said, StepMetrics):
        record.metrics(said.step, said.num_steps, said.values)
    elif isinstance(said, RunEvent):
        record.event(said.kind, said.text, **said.data)
    elif isinstance(said, RunMessage):
        record.message(said.text)
    elif isinstance(said, FlushRequest):
        said.port.send(None)
