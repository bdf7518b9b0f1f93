"""Reports that a run holds: in its terminal, in its folder, and in every watch."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from monarch.actor import HostMesh, ProcMesh
from monarch.errors import MonarchError
from monarch.runs.hold.state_copies import SAMPLED
from monarch.runs.record.edits import Edits, Failure
from monarch.runs.record.folder import RunFolder
from monarch.runs.record.record import PressedKeys, Record
from monarch.runs.record.slowness import ASKED, KEYS
from monarch.runs.recover.deaths import Deaths
from monarch.runs.recover.ranks import RunFailed, RunLost
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.runtime.hosts.bulletins import post
from monarch.runtime.promise import Promise
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import Heard, Listen
from monarch_sync.errors import SyncError
from monarch_sync.words import some

# Seconds between two looks: at the run itself, at answers to a slow call, at answers to a hold, and
# at the hosts.
_LOOK_SECONDS = 0.05
_ASK_SECONDS = 0.5
_FAR_LOOK_SECONDS = 0.5
_HOSTS_SECONDS = 2.0

_AS_IT_WAS = "no rank has changed anything by it, and weights and optimizer are as they were"
_BY_SAMPLES = (
    "no rank has changed anything by it, as torch has counted no write into weights and optimizer, "
    "and samples of them are the same"
)
_NUM_TOLD = 5


def but_for(state: str, unkept: Sequence[str]) -> str:
    """Return a text about how the ranks were restored. It is ``state`` if that is not "", and ends
    with the exceptions in ``unkept``: objects that were not restored or not compared.
    """
    exceptions = [description for description in unkept if description != SAMPLED]
    how = state or (_AS_IT_WAS if len(exceptions) == len(unkept) else _BY_SAMPLES)
    if not exceptions:
        return how
    return f"{how}; not put back, or not compared: {some(exceptions, _NUM_TOLD)}"


class HoldStopped(Exception):
    """The run was asked to stop while it held."""


class HoldReport:
    """Reports holds of a run: in the run's ``record``, and to every watch on the hosts of ``mesh``.

    Without a record it reports holds of this program.
    """

    def __init__(self, record: Record | None, mesh: ProcMesh | HostMesh) -> None:
        self._record = record
        self._edits = record.edits if record is not None else Edits()
        self._hosts = mesh._sync_hosts()
        #: Whether there was a hold. If not, the failure was in procs that are gone.
        self.has_begun = False
        self._name = record.folder.name if record is not None else "this program"
        #: When to look for answers from elsewhere again, by the monotonic clock.
        self._next_look = 0.0
        #: The numbers of answers to earlier questions.
        self._old_answers: set[int] = set()
        #: The keys of the run's own terminal, while `listening`.
        self._keys: PressedKeys | None = None
        #: A request for bulletins, which may still be unanswered, and when it was last sent.
        self._question: Promise[Response[Heard]] | None = None
        self._asked_at = 0.0
        #: The number of the last bulletin.
        self._newest = 0

    @property
    def is_on(self) -> bool:
        """Whether the run holds: the activity that failed has not succeeded since its failure."""
        return self._edits.held_since is not None

    def is_watched(self) -> bool:
        """Whether a watch pushes a person's saves, so that a fix can arrive by itself."""
        return any(bulletin.kind == "watching" for bulletin in self._bulletins())

    def _bulletins(self) -> list[Bulletin]:
        """Return the current bulletins of all hosts."""
        addresses = {host.urls[0]: host for host in self._hosts if host.urls}
        replies = inspect_hosts(process.current().node, addresses).values()
        answers = [reply.answer for reply in replies if not reply.error]
        return [bulletin for answer in answers for bulletin in answer.bulletins]

    @property
    def is_of_this_program(self) -> bool:
        """Whether the procs are on a host inside this program. No other program can push to it."""
        return any(host.uid == process.current().node.uid for host in self._hosts)

    def tell_raised(self, failure: Failure, *, in_place: bool) -> None:
        """Report that an error of new code is raised in this program, and why the run does not hold
        instead.
        """
        ranks = "All ranks are as before the call" if in_place else "Ranks cannot be put back"
        self._alarm(
            "failed_edit",
            failure,
            failure.told(
                f"{ranks}. The error is raised here, as no other program can push to procs of "
                "`this_host()`. With MONARCH_ON_EDIT_ERROR=hold it waits instead, until this "
                "program has pushed a fix (`procs.sync_workspace(...)` on another thread)."
            ),
        )

    # Slow calls

    def slow(self, text: str) -> None:
        """Report that a call takes long, or that a call reported as slow has ended.

        The report goes to this terminal, to the record, and to every watch.
        """
        self._event("slow", text)
        self._post(Bulletin(self._key, "slow", f"{self._name}: {text}"))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs, let `answers` yield a person's answers. A person presses a key in
        the run's terminal or in a watch, or gives a command.
        """
        self._question, self._newest, self._asked_at = None, 0, 0.0
        listen = None if self._record is None else self._record.listen_to_keys
        try:
            with contextlib.nullcontext() if listen is None else listen() as self._keys:
                yield
        finally:
            self._keys = None

    def answers(self) -> Iterator[str]:
        """Yield a person's answers since the last call: keys pressed in the run's terminal, and
        answers that other programs have sent as bulletins.
        """
        while self._keys is not None and (key := self._keys.take()):
            if key in KEYS:
                yield KEYS[key]
        now = time.monotonic()
        if self._question is None:
            if now - self._asked_at >= _ASK_SECONDS and self._hosts:
                self._asked_at = now
                with contextlib.suppress(MonarchError):
                    listen = Listen(self._newest, 0.0)
                    self._question = process.current().node.ask(self._hosts[0], listen)
        elif self._question.is_set:
            reply, self._question = self._question.value, None
            if not reply.error:
                is_first, self._newest = not self._newest, reply.answer.number
                if not is_first:
                    yield from (x.kind for x in reply.answer.bulletins if x.key == ASKED)

    def _has_checkpoint(self) -> bool:
        return self._record is not None and RunFolder(self._record.folder).has_checkpoint

    def answer(
        self,
        failure: Failure,
        edits: Edits,
        *,
        in_place: bool = True,
        state: str = "",
        begins_anew: bool = False,
    ) -> None:
        """Report a failure and follow the run's policy: hold, roll back to older code, or end.

        ``in_place``: all ranks are as before the call; ``state`` says in words how they were
        restored. If they are not in place, or if ``begins_anew``, the attempt restarts, so code
        that runs only at a start counts at once. Raises ``RunFailed`` if the run must end.
        """
        process.current().begins_anew = begins_anew or not in_place
        self._edits.in_place = in_place
        good = edits.way_back(failure)
        if edits.policy == "end" or (edits.policy == "rollback" and good is None):
            raise RunFailed(self.end_words(failure))
        if edits.policy == "rollback":
            self.roll_back(failure, good or 0)
        else:
            self.begin(failure, in_place=in_place, state=state)

    def begin(self, failure: Failure, *, in_place: bool, state: str = "") -> None:
        """Report that the run begins to hold, or that it still holds after another failure."""
        self._begin()
        if in_place:
            usual, stop = _AS_IT_WAS, "saves what was learned, and stops"
        elif self._has_checkpoint():
            usual = (
                "the ranks cannot be put back: after the fix it goes on from the last checkpoint"
            )
            stop = "stops it, and leaves that checkpoint"
        else:
            usual, stop = "after the fix it begins again, in new processes", "stops it"
        if self._record is not None and RunFolder(self._record.folder).is_of_script:
            stop = "stops it"  # Only the script itself could save.
        again = f"and {failure.doing} is made again, on all ranks, with the new code"
        holds = "The run holds" if self._record is not None else "It holds"
        # Code that was never edited has nothing to go back to.
        has_older = failure.good < failure.generation
        if self.is_of_this_program:
            what_now = (
                f"{holds}: {state or usual}.\n"
                "Its processes are this program's own, and no other can push to them: interrupt it "
                "(Ctrl-C), save a fix, `await procs.sync_workspace(...)`, and run it again."
            )
        elif self._record is None:
            what_now = (
                f"{holds}: {state or usual}.\nPush a fix, {again}; or interrupt it, as with Ctrl-C."
            )
        elif self._edits.told == (in_place, has_older, state):
            # After the first hold, the reader knows the long text.
            back = " or go back (b)," if has_older else ""
            what_now = f"The run holds, as before: save a fix,{back} or Ctrl-C."
        else:
            self._edits.told = in_place, has_older, state
            back = "; or go back: `monarch sync rollback`, or b in a `monarch sync --watch`"
            what_now = (
                f"{holds}: {state or usual}.\n"
                f"Save a fix, {again}{back if has_older else ''}.\n"
                f"Ctrl-C in the terminal of the run {stop}."
            )
        self._alarm("held", failure, failure.told(what_now), in_place=in_place)
        if self._record is not None:
            self._record.phase("holding: waiting for a save")

    def answer_apart(self, failure: Failure, right: int | None) -> bool:
        """Decide what follows when ranks differ that should have the same state.

        Return True if all must take the state of rank ``right``, and False if they must continue
        from the last checkpoint. A person decides; without a person the run's policy does, which
        prefers a checkpoint. Raises ``RunFailed`` if the run must end, ``KeyboardInterrupt`` if it
        must stop.
        """
        if self._edits.policy == "end":
            then = "goes on from the last checkpoint" if self._has_checkpoint() else "begins again"
            raise RunFailed(failure.told(f"Nothing was saved of that. The same command {then}"))
        has_checkpoint = self._has_checkpoint()
        anew = "all go on from the last checkpoint" if has_checkpoint else "all begin again"
        if self._edits.policy == "rollback":
            takes = right is not None and not has_checkpoint
            choice = f"all ranks take the state of rank {right}" if takes else anew
            self._alarm("apart", failure, failure.told(f"Nobody is there to choose: {choice}."))
            return takes
        self._begin()
        self._edits.in_place = False  # Its state must not be saved.
        choices = {"c": f"(c) {anew}"}
        if right is not None:
            choices["t"] = f"(t) all ranks take the state of rank {right}"
        name = self._record.folder.name if self._record is not None else ""
        what_now = (
            f"The run holds. Press a key, here or in a watch: {'; '.join(choices.values())}.\n"
            f"Elsewhere: `monarch runs take {name}`, with --checkpoint for (c).\n"
            "Ctrl-C in the terminal of the run stops it, and saves nothing of that."
        )
        # Answers to earlier questions do not count.
        self._old_answers = {answer.number for answer in self._answers()}
        if self._record is not None:
            RunFolder(self._record.folder).take_answer()
        self._alarm("held", failure, failure.told(what_now), in_place=False, choices=list(choices))
        choice = self._choice(choices)
        self._edits.in_place = choice == "t"
        self._show(choices[choice].partition(") ")[2])
        return choice == "t"

    def _choice(self, choices: Container[str]) -> str:
        """Wait for a person's key, here or in a watch, or by a command, and return it."""
        record = self._record
        with Deaths() as deaths, contextlib.ExitStack() as stack:
            pressed: Callable[[], str] = str
            if record is not None:
                record.phase("holding: waiting for a key")
                if record.listen_to_keys is not None:
                    pressed = stack.enter_context(record.listen_to_keys()).take
            while True:
                if record is not None and record.is_stopping:
                    raise KeyboardInterrupt
                if deaths.take():
                    return "c"
                for key in (pressed(), self._answered()):
                    if key and key in choices:
                        return key
                time.sleep(_LOOK_SECONDS)

    def _answered(self) -> str:
        """Return another program's answer to the present question; "" if there is none yet."""
        if self._record is not None and (answer := RunFolder(self._record.folder).take_answer()):
            return answer
        if time.monotonic() < self._next_look:
            return ""
        self._next_look = time.monotonic() + _FAR_LOOK_SECONDS
        new = [answer for answer in self._answers() if answer.number not in self._old_answers]
        return new[-1].text if new else ""

    def _answers(self) -> list[Bulletin]:
        return [bulletin for bulletin in self._bulletins() if bulletin.kind == "answer"]

    def wait(self, failure: Failure, *, in_place: bool) -> bool:
        """Wait for code newer than the code that failed; return whether the ranks are in place.

        Raises ``HoldStopped`` if the run must stop meanwhile; ``KeyboardInterrupt`` if it must stop
        and the ranks are not in place, so that nothing can be saved; ``RunLost`` if ranks died and
        the allocation is gone.
        """
        record, look_at = self._record, time.monotonic() + _HOSTS_SECONDS
        with Deaths() as deaths:
            while not process.current().node.gate.wait_beyond(failure.generation, _LOOK_SECONDS):
                if record is not None and record.is_stopping:
                    raise HoldStopped if in_place else KeyboardInterrupt
                for death in deaths.take():
                    self.tell(f"while the run holds, {death.who} failed: {death.root_cause.reason}")
                    in_place = self._edits.in_place = False
                    process.current().begins_anew = True
                    if record is not None:
                        if reason := record.why_gone():
                            raise RunLost(reason)  # A fix would have nothing to run on.
                        record.repair_hosts()
                if record is not None and time.monotonic() > look_at:
                    # Nobody reports a host on which nothing of ours runs any more.
                    record.repair_hosts(is_loss_known=False)
                    look_at = time.monotonic() + _HOSTS_SECONDS
        self._show(f"trying again, with generation {process.current().generation}")
        return in_place

    def over(self, doing: str, generation: int) -> None:
        """Report the end of a hold: the activity that had failed has succeeded, or new procs train
        again.
        """
        since = self._edits.held_since
        if since is None:
            return
        seconds, self._edits.held_since = time.monotonic() - since, None
        self._edits.in_place = True
        process.current().begins_anew = False
        if self._record is not None and self._record.is_stopping:
            # The save has gone well; the code that failed is not fixed.
            text = f"{self._name} stops, unmended, and has held for {seconds:.1f} s"
            self._post(Bulletin(self._key, "stopped", text, generation))
            return
        text = (
            f"{doing} went well on generation {generation}: the run goes on, after {seconds:.1f} s"
        )
        self._event("mended", text, generation=generation, seconds=seconds)
        self._post(Bulletin(self._key, "mended", f"{self._name}: {text}", generation))

    def roll_back(self, failure: Failure, good: int) -> None:
        """Roll all hosts back to the generation ``good``, unless newer code came after the failure.

        Raises ``RunFailed`` if that is impossible.
        """
        self._begin()
        code = self._record.code if self._record is not None else None
        text = failure.told(f"Nobody is there to fix it: going back to generation {good}.")
        self._alarm("failed_edit", failure, text)
        if process.current().generation > failure.generation:
            return  # A push has come meanwhile: try that first.
        if code is None or code.roll_back is None:
            raise RunFailed(self.end_words(failure))
        try:
            report = code.roll_back(good)
        except (MonarchError, SyncError) as error:
            raise RunFailed(f"{self.end_words(failure)}\nThe rollback failed: {error}") from error
        if not report.ok:
            errors = "; ".join(report.errors)
            raise RunFailed(f"{self.end_words(failure)}\nThe rollback failed: {errors}")
        if self._record is not None:
            text = f"generation {report.generation} is what {good} was; going on"
            self._record.event("rolled_back", text, generation=report.generation, good=good)
        origins = self._edits.origins
        origins[process.current().generation] = origins.get(good, good)

    def end_words(self, failure: Failure) -> str:
        """Return the text with which a run ends after a failure on new code.

        It says how to go back to older code, or that no older code has gone well.
        """
        good = failure.good
        if failure.generation in self._edits.origins:
            advice = "Going back has not helped: nothing older has gone well"
        else:
            ran = "It was the first on code" if failure.is_first else "It ran code"
            since = f"generation {good} went well" if good in failure.older else "the run began"
            advice = (
                f"{ran} that was saved since {since}. "
                f"`monarch sync rollback {good}` goes back to that"
            )
        return failure.told(advice + (f"\n{failure.details}" if failure.details else ""))

    def tell(self, text: str) -> None:
        """Report an event during the hold."""
        self._event("held_still", text)

    def _begin(self) -> None:
        self.has_begun = True
        self._edits.held_since = self._edits.held_since or time.monotonic()

    @property
    def _key(self) -> str:
        return f"run {self._name}"

    def _alarm(self, kind: str, failure: Failure, text: str, **data: Any) -> None:
        generation = failure.generation
        facts = ("error", "file", "line", "ranks", "good", "doing")
        data = {**{name: getattr(failure, name) for name in facts}, **data}
        if self._record is not None:
            self._record.alarm(text)
            self._record.note(kind, text, generation=generation, traceback=failure.details, **data)
        else:
            self._show(text)
        text = f"{self._name}: {text}"
        stands = kind == "held"
        self._post(Bulletin(self._key, kind, text, generation, stands=stands, data=data))

    def _event(self, kind: str, text: str, **data: Any) -> None:
        if self._record is not None:
            self._record.event(kind, text, **data)
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        if self._record is not None:
            self._record.message(text)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _post(self, bulletin: Bulletin) -> None:
        post(process.current().node, self._hosts, bulletin)
