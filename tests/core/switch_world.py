"""A world in which a code switch takes place: an author, hosts, owners and their procs.

Messages between two parties keep their order, and everything else is chance: which message arrives
next, how long work takes, how it ends, and who dies when. The parties are the real state machines;
what the drivers do around them is done here without threads.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.core.code_switch.coordinator import HOSTS, AskParty, Coordinator, Pause
from monarch.core.code_switch.effects import (
    AnswerOrder,
    AskProcs,
    Do,
    Look,
    Reason,
    TakeOver,
    TellHeld,
    TellProcs,
    Work,
)
from monarch.core.code_switch.follower import HostTerms
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.succession import Succession
from monarch.core.code_switch.table import (
    CoordinatorState,
    IllegalEvent,
    ParticipantState,
    SwitchOrder,
    Vote,
    successor_of,
)

__all__ = ["Chances", "Member", "World"]

GENERATION = 7
NO_REASONS = (Reason.SILENT, Reason.OTHERS, Reason.REFUSED)
LATE_REASONS = (
    Reason.NEW_PROC, Reason.ACTORS, Reason.PROCS, Reason.NOT_PASSED, Reason.BUSY, Reason.GIVES_WAY,
    Reason.NOT_HALTED,
)  # fmt: skip


class Chances(NamedTuple):
    """How likely it is, in each case, that something goes wrong."""

    refuse: float = 0.02
    refuse_patch: float = 0.05
    stuck: float = 0.2
    gives_way: float = 0.05
    death: float = 0.01
    spawn: float = 0.02
    interrupt: float = 0.002


USUAL = Chances()


class Member:
    """An owner, or a proc of ``parent``."""

    def __init__(self, world: World, name: str, parent: Member | None) -> None:
        self.world = world
        self.name = name
        self.parent = parent
        self.is_alive = True
        self.children: list[Member] = []
        self.is_gate_closed = False
        self.machine = Participant(
            lambda: [child.name for child in self.children if child.is_alive],
            is_root=parent is None,
        )
        self.runs = parent.runs if parent is not None else "old"
        self.is_prepared = False
        self.is_halted = False
        self.patch_vote: Vote | None = None
        self.gives_way = False
        self.stuck: list[Do] = []
        self.votes: dict[int, Vote] = {}
        self.askers: dict[int, tuple[str, int]] = {}
        self.recovery: Driver | None = None
        self.succession: Succession | None = None
        self.asked_by: list[str] = []

    # When the author has died.

    def author_gone(self) -> None:
        self.carry_out(self.machine.author_gone("author", self.world.now))

    def succeed(self) -> None:
        """The switch is to be ended by the first of us that lives."""
        world = self.world
        if self.succession is None:
            self.succession = Succession([one.name for one in world.owners], self.name)
        first = self.succession.first()
        if first == self.name:
            self.lead()
        else:
            world.post(self.name, first, lambda: world.members[first].asked_to_lead(self.name))
            world.relies(self.name, first)

    def asked_to_lead(self, owner: str) -> None:
        self.asked_by.append(owner)
        self.lead_if_asked()

    def lead_if_asked(self) -> None:
        """Not before the author is gone for us as well, or has brought us to an end."""
        if self.machine.is_led_by("author"):
            return
        if self.asked_by and (self.recovery is None or self.recovery.machine.is_over):
            self.asked_by = []
            self.lead()

    def lead(self) -> None:
        world = self.world
        if self.recovery is not None and not self.recovery.machine.is_over:
            return
        succession = self.succession or Succession([one.name for one in world.owners], self.name)
        name = successor_of("author", succession.term)
        self.recovery = Driver(world, self.name, [self.name, *succession.others()], name)
        self.recovery.carry_out(self.recovery.machine.recover())

    def owner_lost(self, owner: str) -> None:
        if self.succession is not None and self.machine.state is not ParticipantState.IDLE:
            self.succession.lost(owner)
            self.succeed()

    # What arrives.

    def ordered(
        self, sender: str, number: int, order: SwitchOrder, ask: Any, name: str = ""
    ) -> None:
        token = self.world.next_token() if number else 0
        self.askers[token] = sender, number
        self.votes[token] = Vote.YES
        machine, now, uid = self.machine, self.world.now, name or sender
        try:
            if order is SwitchOrder.PREPARE:
                if sender == "author" and not self.world.is_author_alive:
                    self.world.author_hears.append(self)  # Whom it begins to watch now.
                effects = machine.prepare(token, uid, GENERATION, now)
            elif order is SwitchOrder.FENCE:
                seconds = ask.seconds if self.parent is None else None
                effects = machine.raise_fence(
                    token, uid, GENERATION, ask.attempt, now, seconds,
                    is_held=getattr(ask, "is_held", False),
                )  # fmt: skip
            elif order is SwitchOrder.LIFT:
                seconds = getattr(ask, "seconds", 0.0)
                effects = machine.lift(token, uid, GENERATION, ask.attempt, seconds, now)
            elif order is SwitchOrder.HALT:
                effects = machine.halt(token, uid, GENERATION, ask.seconds, now)
            elif order is SwitchOrder.RESUME:
                effects = machine.resume(uid, GENERATION)
            elif order is SwitchOrder.PATCH:
                effects = machine.patch(token, uid, GENERATION, now)
            elif order is SwitchOrder.INQUIRE:
                effects = machine.inquire(token, uid, GENERATION)
            elif order is SwitchOrder.GO:
                is_patched = machine.state is ParticipantState.PATCHED
                effects = machine.go(token, uid, GENERATION)
                if is_patched and machine.state is ParticipantState.IDLE:
                    self.world.decided(self)
            else:
                effects = machine.revert(token, uid, GENERATION, now)
        except IllegalEvent:
            # Late, from an author that is gone.
            self.world.illegal.append((self.name, machine.state, order, uid))
            self.votes[token] = Vote.NO
            effects = [AnswerOrder(token)] if token else []
        self.carry_out(effects)

    def carry_out(self, effects: Sequence[Any]) -> None:
        world = self.world
        for effect in effects:
            if isinstance(effect, Do):
                self.do(effect)
            elif isinstance(effect, AskProcs):
                for number, proc in effect.asked:
                    world.ask(self.name, number, proc, effect.order, effect)
                    world.tokens[self.name, number] = effect.token
            elif isinstance(effect, TellProcs):
                for proc in effect.procs:
                    world.send(self.name, proc, 0, effect.order, effect)
            elif isinstance(effect, AnswerOrder):
                self.answer(effect)
            elif isinstance(effect, TellHeld) and self.parent is not None:
                parent, attempt = self.parent, effect.attempt
                world.post(self.name, parent.name, lambda p=parent, a=attempt: p.held(a))
            elif isinstance(effect, Look):
                if self.stuck:
                    self.carry_out(self.machine.held(0, world.now))
            elif isinstance(effect, TakeOver):
                self.succeed()
        self.lead_if_asked()

    def held(self, attempt: int) -> None:
        self.carry_out(self.machine.held(attempt, self.world.now))

    def answer(self, answer: AnswerOrder) -> None:
        sender, number = self.askers.pop(answer.token)
        vote = self.votes.pop(answer.token)
        for reason, _ in answer.reasons:
            if reason is Reason.WENT:
                vote = Vote.WENT
            elif reason in NO_REASONS:
                vote = Vote.NO
            elif reason in LATE_REASONS and vote is Vote.YES:
                vote = Vote.LATE
        if number:
            self.world.reply(self.name, sender, number, vote, self.gives_way)

    def voted(self, number: int, vote: Vote, gives_way: bool) -> None:
        token = self.world.tokens.pop((self.name, number), 0)
        if token in self.votes and vote in (Vote.NO, Vote.LATE):
            self.votes[token] = Vote.NO if Vote.NO in (vote, self.votes[token]) else vote
        self.carry_out(self.machine.voted(number, vote, self.world.now, gives_way=gives_way))

    # What it does itself.

    def do(self, effect: Do) -> None:
        work, world = effect.work, self.world
        if work in (Work.LIFT_FENCE, Work.END):
            self.is_halted = self.is_gate_closed = False
            stuck, self.stuck = self.stuck, []
            for one in stuck:
                if one.work is not Work.HALT:
                    world.works.append((self, one))
        elif work is Work.RESUME:
            self.is_halted = False
        elif work is Work.GO:
            if effect.token:
                self.answer(AnswerOrder(effect.token))
        elif work in (Work.RAISE_FENCE, Work.HALT) and world.happens(world.chances.stuck):
            self.stuck.append(effect)
        else:
            world.works.append((self, effect))

    def finish(self, effect: Do) -> None:
        """A piece of work ends."""
        work, world = effect.work, self.world
        vote = Vote.YES
        if work is Work.PREPARE:
            if effect.generation:
                self.runs, self.patch_vote = "old", None
            self.is_prepared, self.patch_vote = True, None
            self.gives_way = self.parent is not None and world.happens(world.chances.gives_way)
            vote = world.vote(world.chances.refuse)
        elif work is Work.CATCH_UP:
            vote = world.vote(world.chances.refuse)
            self.gives_way |= self.parent is not None and world.happens(world.chances.gives_way)
        elif work is Work.HALT:
            # A repeated one may end after an earlier one has halted them: they stay halted.
            self.is_halted = self.machine.state in (
                ParticipantState.HALTING,
                ParticipantState.HALTED,
            )
        elif work is Work.CLOSE_GATE:
            self.is_gate_closed = self.machine.state is ParticipantState.FENCING
        elif work is Work.PATCH:
            assert self.is_halted or not self.is_prepared, "code changes under who runs it"
            if self.patch_vote is None:
                self.patch_vote = world.vote(world.chances.refuse_patch)
                self.patch_vote = self.patch_vote if self.is_prepared else Vote.NO
            vote = self.patch_vote
            if vote is Vote.YES:
                self.runs = "new"
        elif work is Work.REVERT:
            self.runs, self.is_prepared = "old", False
        if vote is Vote.NO and effect.token in self.votes:
            self.votes[effect.token] = Vote.NO
        self.carry_out(self.machine.did(effect.number, vote, world.now))


class Host:
    """Has the files, staged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_staged = True
        self.files = "old"
        self.terms = HostTerms()

    def asked(self, order: SwitchOrder, sender: str) -> bool | None:
        """Whether it shows the new files, after this; ``None`` if it does not obey."""
        if not self.terms.obeys(sender, GENERATION):
            return None
        if order is SwitchOrder.SHOW_FILES and self.is_staged:
            self.files, self.is_staged = "new", False
        elif order is SwitchOrder.TAKE_BACK_FILES:
            self.files, self.is_staged = "old", False
        elif order is SwitchOrder.DROP_FILES:
            self.is_staged = False
        return self.files == "new"


class Driver:
    """Carries out what a coordinator wants: the author's, or that of an owner in its place."""

    def __init__(self, world: World, name: str, owners: Sequence[str], sender: str) -> None:
        self.world = world
        self.name = name
        self.owners = owners
        self.sender = sender
        self.machine = Coordinator(len(owners), lambda longest: world.random.uniform(0, longest))
        self.shown: dict[str, bool | None] = {}
        self.files: AskParty | None = None
        world.drivers.append(self)

    def carry_out(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Pause):
                self.world.pauses.append(self)
            elif effect.party == HOSTS:
                self.ask_hosts(effect)
            else:
                if effect.order is SwitchOrder.GO:
                    self.machine.releases()
                owner, asked = self.owners[effect.party], effect
                self.world.ask(self.name, effect.number, owner, effect.order, asked, self)
        if self.machine.is_over and self.name in self.world.members:
            self.world.members[self.name].lead_if_asked()

    def ask_hosts(self, effect: AskParty) -> None:
        self.files = effect
        self.shown = {host.name: None for host in self.world.hosts}
        for host in self.world.hosts:
            self.ask_host(effect, host)

    def ask_host(self, effect: AskParty, host: Host) -> None:
        world, me = self.world, self.name

        def arrive() -> None:
            if host.is_alive:
                is_shown = host.asked(effect.order, self.sender)
                world.post(host.name, me, lambda: self.heard(effect, host.name, is_shown))
            else:
                world.post(me, me, lambda: self.heard(effect, host.name, None))

        world.post(me, host.name, arrive, even_dead=True)

    def heard(self, effect: AskParty, host: str, is_shown: bool | None) -> None:
        """A host has answered, or it is gone."""
        if effect is not self.files or not self.machine.is_open(effect.number):
            return
        if is_shown is None:
            self.shown.pop(host, None)
        else:
            self.shown[host] = is_shown
        if None in self.shown.values():
            return
        says = [*self.shown.values()]
        some = Vote.SOME if any(says) else Vote.NO
        vote = Vote.YES if says and all(says) else some
        is_lost = len(says) < len(self.world.hosts)
        if self.machine.state is CoordinatorState.SHOWING and self.name == "author" and is_lost:
            vote = Vote.NO
        self.carry_out(self.machine.voted(effect.number, vote))

    def voted(self, number: int, vote: Vote) -> None:
        self.carry_out(self.machine.voted(number, vote))


class World:
    def __init__(
        self, seed: int, num_owners: int = 2, num_procs: int = 2, num_hosts: int = 2,
        chances: Chances = USUAL,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.chances = chances
        self.now = 0.0
        self.drivers: list[Driver] = []
        self.reliances: list[tuple[str, str]] = []
        self.links: dict[tuple[str, str], deque[tuple[Callable[[], None], bool]]] = {}
        self.works: list[tuple[Member, Do]] = []
        self.pauses: list[Driver] = []
        self.tokens: dict[tuple[str, int], int] = {}
        self.open: dict[tuple[int, int], tuple[Any, str]] = {}
        self.illegal: list[tuple[Any, ...]] = []
        self.is_author_alive = True
        self._token = 0
        self.members: dict[str, Member] = {}
        for number in range(num_owners):
            owner = self._make(f"owner{number}", None)
            for _ in range(self.random.randint(0, num_procs)):
                self._make("", owner)
        self.hosts = [Host(f"host{number}") for number in range(num_hosts)]
        self.owners = [member for member in self.members.values() if member.parent is None]
        self.author = Driver(self, "author", [one.name for one in self.owners], "author")
        self.author_hears: list[Member] = []
        self.has_gone: set[str] = set()

    def _make(self, name: str, parent: Member | None) -> Member:
        name = name or f"{parent.name if parent else ''}.{len(self.members)}"
        made = self.members[name] = Member(self, name, parent)
        if parent is not None:
            parent.children.append(made)
        return made

    def next_token(self) -> int:
        self._token += 1
        return self._token

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def vote(self, chance: float) -> Vote:
        return Vote.NO if self.happens(chance) else Vote.YES

    # Messages.

    def post(
        self, sender: str, to: str, act: Callable[[], None], *, even_dead: bool = False
    ) -> None:
        self.links.setdefault((sender, to), deque()).append((act, even_dead))

    def is_alive(self, name: str) -> bool:
        if name == "author":
            return self.is_author_alive
        return any(host.name == name and host.is_alive for host in self.hosts) or (
            name in self.members and self.members[name].is_alive
        )

    def send(
        self, sender: str, to: str, number: int, order: SwitchOrder, ask: Any, name: str = ""
    ) -> None:
        self.post(sender, to, lambda: self.members[to].ordered(sender, number, order, ask, name))

    def ask(
        self, sender: str, number: int, to: str, order: SwitchOrder, ask: Any,
        driver: Driver | None = None,
    ) -> None:  # fmt: skip
        asker: Any = driver or self.members[sender]
        self.open[id(asker), number] = asker, to
        if not self.is_alive(to):
            self.post(sender, sender, lambda: self.heard(asker, number, Vote.GONE, False))
            return
        self.send(sender, to, number, order, ask, driver.sender if driver else "")

    def reply(self, sender: str, to: str, number: int, vote: Vote, gives_way: bool) -> None:
        askers: list[Any] = [self.author] if to == "author" else []
        if to in self.members:
            askers = [one for one in self.drivers if one.name == to] + [self.members[to]]
        for asker in askers:
            if self.open.get((id(asker), number), ("", ""))[1] == sender:
                self.post(sender, to, lambda a=asker: self.heard(a, number, vote, gives_way))
                return

    def heard(self, asker: Any, number: int, vote: Vote, gives_way: bool) -> None:
        if self.open.pop((id(asker), number), None) is None:
            return
        if isinstance(asker, Driver):
            asker.voted(number, vote)
        else:
            asker.voted(number, vote, gives_way)

    # Deaths.

    def kill(self, name: str) -> None:
        """It and what it owns; of what it has sent, some arrives."""
        if name == "author":
            self.is_author_alive = False
            self.author_hears = [
                one for one in self.owners if one.machine.state is not ParticipantState.IDLE
            ]
        for host in self.hosts:
            if host.name == name:
                host.is_alive = False
                for driver in self.drivers:
                    if driver.files is not None:
                        ask = driver.files
                        lost = lambda d=driver, a=ask: d.heard(a, name, None)  # noqa: E731
                        self.post(driver.name, driver.name, lost)
        dead = [name]
        if name in self.members:
            dead += [child.name for child in self.members[name].children]
            for one in dead:
                self.members[one].is_alive = False
        for (sender, _), queue in self.links.items():
            if sender in dead:
                for _ in range(self.random.randint(0, len(queue))):
                    queue.pop()
        for owner, relied_on in self.reliances:
            if relied_on in dead:
                self._tell_lost(owner, relied_on)
        for (_, number), (asker, to) in list(self.open.items()):
            if to in dead:
                heard = lambda a=asker, n=number: self.heard(a, n, Vote.GONE, False)  # noqa: E731
                self.post(asker.name, asker.name, heard)

    def relies(self, owner: str, on: str) -> None:
        """``owner`` waits for that one to act, and hears of its death."""
        self.reliances.append((owner, on))
        if not self.is_alive(on):
            self._tell_lost(owner, on)

    def _tell_lost(self, owner: str, lost: str) -> None:
        self.post(owner, owner, lambda: self.members[owner].owner_lost(lost))

    def mortals(self) -> list[str]:
        names = [member.name for member in self.members.values() if member.is_alive]
        names += [host.name for host in self.hosts if host.is_alive]
        return [*names, "author"] if self.is_author_alive else names

    # Chance.

    def run(self, deaths: Mapping[int, str] = {}, max_steps: int = 20_000) -> int:
        """Until nothing happens any more. ``deaths``: who dies before which event, in so far as it
        still lives; an event that never comes kills nobody. How many events there were."""
        self.author.carry_out(self.author.machine.begin())
        for number in range(max_steps):
            if number in deaths and self.is_alive(deaths[number]):
                self.kill(deaths[number])
                self.check()
            if not self.step():
                return number
            self.check()
        raise AssertionError("it comes to no end")

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Without chance: what can happen happens in its order, until this is so, or nothing is
        left. Nobody is late."""
        for _ in range(10_000):
            links = [link for link, queue in self.links.items() if queue]
            if until() or not (links or self.works or self.author_hears):
                return
            if links:
                self._deliver(links[0])
            elif self.works:
                self._finish(self.works[0])
            else:
                self._notice(self.author_hears[0])
        raise AssertionError("it comes to no end")

    def step(self) -> bool:
        links = [link for link, queue in self.links.items() if queue]
        works = [work for work in self.works if work[0].is_alive]
        pauses = [one for one in self.pauses if self.is_alive(one.name)]
        choices: list[Callable[[], None]] = []
        choices += [lambda link=link: self._deliver(link) for link in links]
        choices += [lambda work=work: self._finish(work) for work in works]
        choices += [lambda one=one: self._wake(one) for one in pauses]
        choices += [lambda one=one: self._notice(one) for one in self.author_hears]
        stuck = [m for m in self.members.values() if m.is_alive and m.stuck]
        timers = [
            member for member in self.members.values()
            if member.is_alive and member.machine.wakes_at() is not None
        ]  # fmt: skip
        timers = [one for one in timers if (one.machine.wakes_at() or 0.0) < 1e9]
        if stuck and (not choices or self.happens(0.01)):
            # Who was only busy is done some day.
            choices.append(lambda: self._unstick(self.random.choice(stuck)))
        if timers and (not choices or self.happens(0.1)):
            choices = [lambda: self._tick(self.random.choice(timers))]
        if not choices:
            return False
        if self.happens(self.chances.death) and self.mortals():
            choices = [lambda: self.kill(self.random.choice(self.mortals()))]
        elif self.happens(self.chances.spawn):
            choices = [self._spawn]
        elif self.is_author_alive and self.happens(self.chances.interrupt):
            choices = [self._interrupt]
        self.random.choice(choices)()
        return True

    def _deliver(self, link: tuple[str, str]) -> None:
        act, even_dead = self.links[link].popleft()
        if self.is_alive(link[1]) or even_dead:
            act()

    def _finish(self, work: tuple[Member, Do]) -> None:
        self.works.remove(work)
        work[0].finish(work[1])

    def _wake(self, driver: Driver) -> None:
        self.pauses.remove(driver)
        if driver.machine.state is CoordinatorState.PAUSING:
            driver.carry_out(driver.machine.woke())

    def _notice(self, owner: Member) -> None:
        """An owner hears that the author is gone; what was on its way may still come."""
        self.author_hears.remove(owner)
        if owner.is_alive:
            owner.author_gone()

    def _unstick(self, member: Member) -> None:
        self.works += [(member, one) for one in member.stuck]
        member.stuck = []

    def _tick(self, member: Member) -> None:
        at = member.machine.wakes_at()
        if at is not None:
            self.now = max(self.now, at)
            member.carry_out(member.machine.tick(self.now))

    def _interrupt(self) -> None:
        """Ctrl-C at the author's."""
        if not self.author.machine.is_over:
            self.author.carry_out(self.author.machine.interrupted())

    def _spawn(self) -> None:
        owners = [one for one in self.owners if one.is_alive and not one.is_gate_closed]
        if owners and len(self.members) < 12:
            self._make("", self.random.choice(owners))

    # What must be so.

    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_alive]

    def decided(self, member: Member) -> None:
        """A process is told to run the new code: by now every living one must have it."""
        self.has_gone.add(member.name)
        for other in self.living():
            if other.gives_way:
                continue  # It ends, on its old code.
            assert other.runs == "new", f"{other.name} has not the new code"

    def check(self) -> None:
        if not any(self.is_alive(name) for name in self.has_gone):
            return
        for member in self.living():
            if member.gives_way:
                continue
            assert member.runs == "new", f"{member.name} is left on the old code"

    def check_end(self) -> None:
        """No process is halted for ever, and all run one generation, which is that of the files."""
        living = self.living()
        for member in living:
            ends = (
                [ParticipantState.IDLE, ParticipantState.FENCED]
                if member.gives_way
                else [ParticipantState.IDLE]
            )
            assert member.machine.state in ends, f"{member.name}: {member.machine.state}"
            assert not member.is_halted, f"{member.name} is halted for ever"
            is_shut = member.is_gate_closed and not member.gives_way
            assert not is_shut, f"{member.name} may spawn no more"
        runs = {member.runs for member in living if not member.gives_way}
        assert len(runs) <= 1, f"they differ: {[(m.name, m.runs) for m in living]}"
        files = {host.files for host in self.hosts if host.is_alive}
        if self.is_author_alive:
            assert self.author.machine.is_over, self.author.machine.state
            wanted = "new" if self.author.machine.state is CoordinatorState.COMMITTED else "old"
            assert runs <= {wanted}
            assert files <= {wanted}
        elif runs:
            assert files <= runs, f"files {files}, code {runs}"
        if self.is_author_alive:
            assert not self.illegal, self.illegal
