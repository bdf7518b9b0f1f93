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
from monarch_recipes.replicas.groups import StoppedUnsaved
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
    """Train to the end, whichever group dies. ``config`` must have the keys of the recipe's config.

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
    controller = this_proc().spawn(
        "controller",
        Controller,
        config,
        trainer_class,
        hosts,
        procs_per_host=record.procs_per_host,
        checkpoint_dir=record.checkpoint_dir.resolve(),
        news=port,
        hold=GroupsHold(config, record.edits, HoldReport(None, hosts), port),
    )
    controller.begin.call_one().get()
    report, living = HoldReport(record, hosts), hosts
    has_asked_to_stop = is_interrupted = is_listening = False
    warnings = hosts.on_warning(record.warned)
    listening = contextlib.ExitStack()  # while a step on new code takes long
    message: Any = None
    try:
        while True:
            try:
                # A message that Ctrl-C kept from being written comes first.
                message = _next_news(news) if message is None else message
                if isinstance(message, Finished):
                    break
                if isinstance(message, Failed):
                    if isinstance(message.error, StoppedUnsaved):
                        raise KeyboardInterrupt(str(message.error))
                    _look_after(living, record)
                    raise message.error
                _write_down(message, record)
                written, message = message, None
                if isinstance(written, RunEvent) and "answers" in written.data and not is_listening:
                    listening.enter_context(report.listening())
                    is_listening = True
                elif isinstance(written, StepMetrics | Holds) and is_listening:
                    listening.close()
                    is_listening = False
                for answer in report.answers() if is_listening else ():
                    controller.answer_slow.call_one(answer).get()
                if isinstance(written, Holds):
                    if written.failure is not None:
                        report.answer(
                            written.failure,
                            record.edits,
                            in_place=written.in_place,
                            state=written.state,
                            begins_anew=written.begins_anew,
                        )
                    else:
                        report.over(written.doing, written.generation)
                if isinstance(written, RunEvent) and written.kind == "died":
                    # Before its restart, which waits until this is written down.
                    new_hosts = _look_after(living, record)
                    if new_hosts is not living:
                        if not new_hosts._places_in(hosts):  # Some hosts have new addresses.
                            warnings.close()
                            hosts = hosts._with(living._places_in(hosts), new_hosts)
                            warnings = hosts.on_warning(record.warned)
                        living = new_hosts
                        controller.go_on_with.call_one(hosts, living._places_in(hosts)).get()
                if record.is_stopping and not has_asked_to_stop:
                    has_asked_to_stop = True
                    controller.stop_soon.call_one().get()
                if record.take_save_wanted():
                    controller.save_soon.call_one().get()
                old_config, config = config, record.live(config)
                if config != old_config:
                    controller.reconfigure.call_one(config).get()
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
    return message.outcome


def _look_after(hosts: HostMesh, record: Record) -> HostMesh:
    """Return the hosts to continue with after a loss: the same, some of them, or with replacements.

    Raises _Moved if none of ``hosts`` is among them, and RunFailed if there are no hosts at all.
    """
    living = record.hosts_after_loss(hosts, any_number=True)
    if living is not hosts and not living._places_in(hosts):
        is_partly_there = len(living) == len(hosts) and set(living._hosts) & set(hosts._hosts)
        if not is_partly_there:
            raise _Moved(living)
    return living


def _next_news(news: PortReceiver[Any]) -> Any:
    """Return the next message of the controller; None if none comes within half a second."""
    try:
        return news.recv().get(timeout=_LOOK_SECONDS)
    except TimeoutError:
        return None


def _write_down(
    message: StepMetrics | RunEvent | RunMessage | FlushRequest | Holds | None, record: Record
) -> None:
    if isinstance(message, StepMetrics):
        record.metrics(message.step, message.num_steps, message.values)
    elif isinstance(message, RunEvent):
        record.event(message.kind, message.text, **message.data)
    elif isinstance(message, RunMessage):
        record.message(message.text)
    elif isinstance(message, FlushRequest):
        message.port.send(None)
