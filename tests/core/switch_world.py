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

from monarch.core.code_switch.coordinator import HOST_ORDERS, Coordinator, Pause
from monarch.core.code_switch.effects import (
    AnswerOrder,
    AskProcs,
    Do,
    Look,
    Reason,
    TellHeld,
    TellProcs,
    Work,
)
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.proposal import NOBODY, BringBack, Proposal
from monarch.core.code_switch.table import (
    CoordinatorState,
    IllegalEvent,
    ParticipantState,
    ProposalState,
    Vote,
)
from monarch.wire.message import Order, SwitchOrder

__all__ = ["Chances", "Member", "World"]

GENERATION = 7
NO_REASONS = (Reason.SILENT, Reason.OTHERS, Reason.REFUSED)
LATE_REASONS = (
    Reason.NEW_PROC, Reason.ACTORS, Reason.PROCS, Reason.NOT_PASSED, Reason.BUSY, Reason.GIVES_WAY,
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
            uid=name,
        )
        self.runs = parent.runs if parent is not None else "old"
        self.is_prepared = False
        self.is_halted = False
        self.patch_vote: Vote | None = None
        self.gives_way = False
        self.stuck: list[Do] = []
        self.votes: dict[int, Vote] = {}
        self.askers: dict[int, tuple[str, int]] = {}
        self.leading: Leading | None = None
        self.was_brought_back = False

    def author_gone(self) -> None:
        effects = self.machine.author_gone("author", self.world.now)
        for host in self.world.hosts_of(self.name) if effects else ():
            self.world.post(self.name, host.name, lambda h=host: h.asked(SwitchOrder.DROP_FILES))
        self.carry_out(effects)

    # What arrives.

    def ordered(self, sender: str, number: int, order: Order) -> None:
        world = self.world
        if order.kind is SwitchOrder.SWITCH and self.parent is None:
            self.told_to_switch(sender, number, order)
            return
        leading = self.leading if sender != self.name and order.kind is SwitchOrder.REVERT else None
        if leading is not None and not leading.machine.is_over:
            leading.call_off(number)
            return
        token = world.next_token() if number else 0
        self.askers[token] = sender, number
        self.votes[token] = Vote.YES
        if order.kind is SwitchOrder.PREPARE and sender == "author" and not world.is_author_alive:
            world.author_hears.append(self)  # Whom it begins to watch now.
        was = self.machine.state
        try:
            effects = self.machine.on(order, sender, token, world.now)
        except IllegalEvent:
            # Late, from an author that is gone.
            world.illegal.append((self.name, was, order, sender))
            self.votes[token] = Vote.NO
            effects = [AnswerOrder(token)] if token else []
        if order.kind is SwitchOrder.GO and was is ParticipantState.PATCHED:
            world.decided(self)
        self.carry_out(effects)

    def told_to_switch(self, sender: str, number: int, order: Order) -> None:
        try:
            self.machine.on(order, sender, 0, self.world.now)
        except IllegalEvent:
            self.world.illegal.append((self.name, self.machine.state, order, sender))
            self.world.reply(self.name, sender, number, Vote.NO, False)
            return
        self.leading = Leading(self, sender, number)
        self.leading.carry_out(self.leading.machine.begin())

    def brought_back(self, number: int = 0) -> None:
        """Another push has what was here before: it comes after all that was sent by now."""
        if number:
            self.world.reply(self.name, "author", number, Vote.YES, False)
        self.runs, self.was_brought_back = "old", True
        for child in self.children:
            self.world.post(self.name, child.name, child.brought_back)
        for host in self.world.hosts_of(self.name):
            host.files = "old"

    def carry_out(self, effects: Sequence[Any]) -> None:
        world = self.world
        for effect in effects:
            if isinstance(effect, Do):
                self.do(effect)
            elif isinstance(effect, AskProcs):
                for number, proc in effect.asked:
                    world.ask(self.name, number, proc, effect.order)
                    world.tokens[self.name, number] = effect.token
            elif isinstance(effect, TellProcs):
                for proc in effect.procs:
                    world.send(self.name, proc, 0, effect.order)
            elif isinstance(effect, AnswerOrder):
                self.answer(effect)
            elif isinstance(effect, TellHeld) and self.parent is not None:
                parent, attempt = self.parent, effect.attempt
                world.post(self.name, parent.name, lambda p=parent, a=attempt: p.held(a))
            elif isinstance(effect, Look) and self.stuck:
                self.carry_out(self.machine.held(0, world.now))

    def held(self, attempt: int) -> None:
        self.carry_out(self.machine.held(attempt, self.world.now))

    def answer(self, answer: AnswerOrder) -> None:
        sender, number = self.askers.pop(answer.token)
        vote = self.votes.pop(answer.token)
        for reason, _ in answer.reasons:
            if reason in NO_REASONS:
                vote = Vote.NO
            elif reason in LATE_REASONS and vote is Vote.YES:
                vote = Vote.LATE
        if number and sender == self.name:
            self.world.post(sender, sender, lambda: self.leading_voted(number, vote))
        elif number:
            self.world.reply(self.name, sender, number, vote, self.gives_way)

    def leading_voted(self, number: int, vote: Vote) -> None:
        assert self.leading is not None
        self.leading.voted(number, vote)

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
                ParticipantState.PATCHING,
                ParticipantState.PATCHED,
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
    """Has the files, staged. Its owner sees to them, or, where nothing runs, the author."""

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.is_alive = True
        self.is_staged = True
        self.files = "old"

    def asked(self, order: SwitchOrder) -> bool:
        """Whether it shows the new files, after this."""
        if order is SwitchOrder.SHOW_FILES and self.is_staged:
            self.files, self.is_staged = "new", False
        elif order is SwitchOrder.TAKE_BACK_FILES:
            self.files, self.is_staged = "old", False
        elif order is SwitchOrder.DROP_FILES:
            self.is_staged = False
        return self.files == "new"


class Files:
    """Orders to some hosts, all at once, on behalf of ``name``."""

    def __init__(self, world: World, name: str, heard: Callable[[Vote], None]) -> None:
        self.world = world
        self.name = name
        self.heard = heard
        self.number = 0
        self.waits_for: dict[str, bool | None] = {}
        self.order = SwitchOrder.DROP_FILES
        world.files.append(self)

    def ask(self, order: SwitchOrder, hosts: Sequence[Host]) -> None:
        self.number += 1
        self.order = order
        self.waits_for = {host.name: None for host in hosts}
        if not hosts:
            me, number = self.name, self.number
            self.world.post(me, me, lambda: self.answered(number, "", None))
        for host in hosts:
            self._ask(order, host, self.number)

    def _ask(self, order: SwitchOrder, host: Host, number: int) -> None:
        world, me = self.world, self.name

        def arrive() -> None:
            sender = host.name if host.is_alive else me
            is_shown = host.asked(order) if host.is_alive else None
            world.post(sender, me, lambda: self.answered(number, host.name, is_shown))

        world.post(me, host.name, arrive, even_dead=True)

    def lost(self, host: str) -> None:
        if self.waits_for.get(host, False) is None:
            number = self.number
            self.world.post(self.name, self.name, lambda: self.answered(number, host, None))

    def answered(self, number: int, host: str, is_shown: bool | None) -> None:
        if number != self.number or (host and self.waits_for.get(host, False) is not None):
            return
        if host:
            self.waits_for[host] = bool(is_shown)
        if None in self.waits_for.values():
            return
        self.number += 1
        self.heard(Vote.YES if all(self.waits_for.values()) else Vote.NO)


class Leading:
    """An owner that drives its own switch; it answers the author when that is over."""

    def __init__(self, member: Member, author: str, number: int) -> None:
        self.member = member
        self.name = member.name
        self.author = author
        self.machine = Coordinator(
            GENERATION, lambda longest: member.world.random.uniform(0, longest)
        )
        self.answers = [number]
        self.number = 0
        self.files = Files(member.world, member.name, self.hosts_voted)

    def carry_out(self, effect: Any) -> None:
        world = self.member.world
        if isinstance(effect, Pause):
            world.pauses.append(self)
        elif effect is None:
            vote = Vote.YES if self.machine.state is CoordinatorState.COMMITTED else Vote.NO
            for number in self.answers:
                world.reply(self.name, self.author, number, vote, False)
        elif effect.kind in HOST_ORDERS:
            world.trace.append(effect.kind.value)
            self.files.ask(effect.kind, world.hosts_of(self.name))
        else:
            self.number += 1
            if effect.kind is SwitchOrder.GO:
                self.machine.releases()
            self.member.ordered(self.name, self.number, effect)

    def voted(self, number: int, vote: Vote) -> None:
        if number == self.number:
            self.number += 1
            self.carry_out(self.machine.voted(vote))

    def hosts_voted(self, vote: Vote) -> None:
        self.carry_out(self.machine.voted(vote))

    def call_off(self, number: int) -> None:
        self.answers.append(number)
        if not self.machine.is_decided:
            self.number += 1
            self.files.number += 1
            self.carry_out(self.machine.interrupted())


class Author:
    """Carries out what a proposal wants."""

    def __init__(self, world: World, owners: Sequence[str]) -> None:
        self.world = world
        self.name = "author"
        self.owners = owners
        self.machine = Proposal(len(owners))
        self.number = 0
        self.files = Files(world, self.name, self.hosts_voted)

    def carry_out(self, request: Any) -> None:
        if request is None:
            return
        self.number += 1
        owner = "" if request.owner == NOBODY else self.owners[request.owner]
        if isinstance(request, BringBack):
            if not self.world.is_alive(owner):
                me, number = self.name, self.number
                self.world.post(me, me, lambda: self.voted(number, Vote.GONE))
            else:
                number, member = self.number, self.world.members[owner]
                self.world.open[self.name, number] = owner
                self.world.post(self.name, owner, lambda: member.brought_back(number))
        elif request.order in HOST_ORDERS:
            self.files.ask(request.order, self.world.hosts_of(owner))
        else:
            self.world.ask(self.name, self.number, owner, Order(request.order, GENERATION))

    def voted(self, number: int, vote: Vote) -> None:
        if number == self.number:
            self.carry_out(self.machine.voted(vote))

    def hosts_voted(self, vote: Vote) -> None:
        self.carry_out(self.machine.voted(vote))

    def interrupted(self) -> None:
        """Ctrl-C."""
        switching = self.machine.switching
        before = self.machine.state
        request = self.machine.interrupted()
        if switching is not None:
            # Nothing waits for this answer: that of the switch says what has come of it.
            owner = self.owners[switching]
            self.world.send(self.name, owner, 0, Order(SwitchOrder.REVERT, GENERATION))
        elif self.machine.state is not before:
            self.number += 1
            self.files.number += 1
            self.carry_out(request)


class World:
    def __init__(
        self, seed: int, num_owners: int = 2, num_procs: int = 2, num_hosts: int = 2,
        chances: Chances = USUAL,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.chances = chances
        self.now = 0.0
        self.files: list[Files] = []
        self.trace: list[str] = []
        self.links: dict[tuple[str, str], deque[tuple[Callable[[], None], bool]]] = {}
        self.works: list[tuple[Member, Do]] = []
        self.pauses: list[Leading] = []
        self.tokens: dict[tuple[str, int], int] = {}
        self.open: dict[tuple[str, int], str] = {}
        self.illegal: list[tuple[Any, ...]] = []
        self.is_author_alive = True
        self._token = 0
        self.members: dict[str, Member] = {}
        for number in range(num_owners):
            owner = self._make(f"owner{number}", None)
            for _ in range(self.random.randint(0, num_procs)):
                self._make("", owner)
        self.owners = [member for member in self.members.values() if member.parent is None]
        names = [one.name for one in self.owners]
        self.hosts = [
            Host(f"host{number}", (*names, "")[number % (num_owners + 1)])
            for number in range(num_hosts)
        ]
        self.author = Author(self, names)
        self.died_in: ProposalState | None = None
        self.author_hears: list[Member] = []
        self.has_gone: set[str] = set()

    def _make(self, name: str, parent: Member | None) -> Member:
        name = name or f"{parent.name if parent else ''}.{len(self.members)}"
        made = self.members[name] = Member(self, name, parent)
        if parent is not None:
            parent.children.append(made)
        return made

    def hosts_of(self, owner: str) -> list[Host]:
        """The hosts of an owner; of nobody, if it is ""."""
        return [host for host in self.hosts if host.owner == owner]

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

    def send(self, sender: str, to: str, number: int, order: Order) -> None:
        self.post(sender, to, lambda: self.members[to].ordered(sender, number, order))

    def ask(self, sender: str, number: int, to: str, order: Order) -> None:
        self.open[sender, number] = to
        if not self.is_alive(to):
            self.post(sender, sender, lambda: self.heard(sender, number, Vote.GONE, False))
            return
        self.send(sender, to, number, order)

    def reply(self, sender: str, to: str, number: int, vote: Vote, gives_way: bool) -> None:
        if self.open.get((to, number)) == sender:
            self.post(sender, to, lambda: self.heard(to, number, vote, gives_way))

    def heard(self, asker: str, number: int, vote: Vote, gives_way: bool) -> None:
        if self.open.pop((asker, number), None) is None:
            return
        if asker == "author":
            self.author.voted(number, vote)
        else:
            self.members[asker].voted(number, vote, gives_way)

    # Deaths.

    def kill(self, name: str) -> None:
        """It and what it owns; of what it has sent, some arrives."""
        if name == "author":
            self.is_author_alive = False
            self.died_in = self.author.machine.state
            self.author_hears = [
                one for one in self.owners if one.machine.state is not ParticipantState.IDLE
            ]
        for host in self.hosts:
            if host.name == name:
                host.is_alive = False
                for files in self.files:
                    files.lost(name)
        dead = [name]
        if name in self.members:
            dead += [child.name for child in self.members[name].children]
            for one in dead:
                self.members[one].is_alive = False
        for (sender, _), queue in self.links.items():
            if sender in dead:
                for _ in range(self.random.randint(0, len(queue))):
                    queue.pop()
        for (asker, number), to in list(self.open.items()):
            if to in dead:
                heard = lambda a=asker, n=number: self.heard(a, n, Vote.GONE, False)  # noqa: E731
                self.post(asker, asker, heard)

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

    def _wake(self, leading: Leading) -> None:
        self.pauses.remove(leading)
        if leading.machine.state is CoordinatorState.PAUSING:
            self.trace.append("pause")
            leading.carry_out(leading.machine.woke())

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
            self.author.interrupted()

    def _spawn(self) -> None:
        owners = [one for one in self.owners if one.is_alive and not one.is_gate_closed]
        if owners and len(self.members) < 12:
            self._make("", self.random.choice(owners))

    # What must be so.

    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_alive]

    def tree_of(self, member: Member) -> list[Member]:
        """The living of one program, without those that end on their old code."""
        root = member.parent or member
        return [one for one in (root, *root.children) if one.is_alive and not one.gives_way]

    def decided(self, member: Member) -> None:
        """A process is told to run the new code: by now every living one must have it."""
        self.has_gone.add(member.name)
        self.check()

    def check(self) -> None:
        for name in self.has_gone:
            member = self.members[name]
            if not member.is_alive or (member.parent or member).was_brought_back:
                continue
            for other in self.tree_of(member):
                assert other.runs == "new", f"{other.name} is left on the old code"

    def check_end(self) -> None:
        """No process is halted for ever, and all of a program run one generation, which is that of
        its hosts' files. So do all programs, unless the author died while it had them switch."""
        for member in self.living():
            ends = (
                [ParticipantState.IDLE, ParticipantState.FENCED]
                if member.gives_way
                else [ParticipantState.IDLE]
            )
            assert member.machine.state in ends, f"{member.name}: {member.machine.state}"
            assert not member.is_halted, f"{member.name} is halted for ever"
            is_shut = member.is_gate_closed and not member.gives_way
            assert not is_shut, f"{member.name} may spawn no more"
        ends_at = set()
        for owner in self.owners:
            runs = {member.runs for member in self.tree_of(owner)}
            files = {host.files for host in self.hosts_of(owner.name) if host.is_alive}
            assert len(runs) <= 1, f"they differ: {[(m.name, m.runs) for m in self.living()]}"
            ends_at |= runs
            if owner.is_alive:
                assert files <= runs, f"{owner.name}: files {files}, code {runs}"
        if self.is_author_alive:
            state = self.author.machine.state
            assert self.author.machine.is_over, state
            wanted = "new" if state is ProposalState.SWITCHED else "old"
            assert ends_at <= {wanted}
            shown = {host.files for host in self.hosts if host.is_alive}
            assert shown <= {wanted}, f"files {shown}, where all are to be {wanted}"
            assert not self.illegal, self.illegal
        elif len(ends_at) > 1:
            assert self.died_in in (ProposalState.SWITCHING, ProposalState.CALLING_OFF)
