from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch.core.mailbox import Delivery, Fence, Halt, Lift, Mailbox, Reached, Resume

SENDERS = ["client", "peer", "other"]


class MailboxRules(RuleBasedStateMachine):
    """What was sent, by sender, against what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox()
        self.waiting: dict[str, list[Delivery | Fence]] = {sender: [] for sender in SENDERS}
        self.raised: dict[str, int] = {}
        self.number = 0

    def _send(self, event: Delivery | Fence) -> None:
        self.mailbox.feed(event)
        self.waiting[event.sender].append(event)

    @rule(sender=st.sampled_from(SENDERS))
    def deliver(self, sender: str) -> None:
        self.number += 1
        self._send(Delivery(sender, self.number))

    @rule(sender=st.sampled_from(SENDERS))
    def fence(self, sender: str) -> None:
        self.number += 1
        self._send(Fence(sender, self.number))

    @precondition(lambda self: self.raised)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(self.raised)))
        self.mailbox.feed(Lift(self.raised.pop(sender)))

    @rule()
    def lift_an_unknown_fence(self) -> None:
        self.mailbox.feed(Lift(-1))

    @rule()
    def take(self) -> None:
        item = self.mailbox.next()
        free = [s for s in SENDERS if s not in self.raised and self.waiting[s]]
        if item is None:
            assert not free, f"{free} have work, and are not fenced"
            return
        heads = {s: self.waiting[s][0] for s in free}
        if isinstance(item, Reached):
            sender = next(s for s, head in heads.items() if head == Fence(s, item.number))
            self.raised[sender] = item.number
        else:
            sender = item.sender
            assert heads[sender] == item, "out of order, or held back by a fence"
        del self.waiting[sender][0]

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.mailbox) == sum(map(len, self.waiting.values()))

    def teardown(self) -> None:
        while any(self.waiting.values()):
            for sender in list(self.raised):
                self.mailbox.feed(Lift(self.raised.pop(sender)))
            before = len(self.mailbox)
            self.take()
            assert len(self.mailbox) == before - 1
        assert self.mailbox.next() is None


MailboxRules.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMailbox = MailboxRules.TestCase


def test_other_senders_go_on_while_a_fence_is_up() -> None:
    mailbox = Mailbox()
    for event in [Fence("a", 1), Delivery("a", "held"), Delivery("b", "free")]:
        mailbox.feed(event)
    assert mailbox.next() == Reached(1)
    assert mailbox.next() == Delivery("b", "free")
    assert mailbox.next() is None
    mailbox.feed(Lift(1))
    assert mailbox.next() == Delivery("a", "held")


def test_two_fences_of_one_sender_are_reached_one_after_the_other() -> None:
    mailbox = Mailbox()
    for event in [Fence("a", 1), Delivery("a", "x"), Fence("a", 2), Delivery("a", "y")]:
        mailbox.feed(event)
    assert mailbox.next() == Reached(1)
    assert mailbox.next() is None
    mailbox.feed(Lift(1))
    assert [mailbox.next(), mailbox.next(), mailbox.next()] == [
        Delivery("a", "x"),
        Reached(2),
        None,
    ]
    mailbox.feed(Lift(2))
    assert mailbox.next() == Delivery("a", "y")


def test_what_is_urgent_comes_before_all_that_waits_and_passes_fences() -> None:
    mailbox = Mailbox()
    first, second = (Delivery("a", work, is_urgent=True) for work in ("first", "second"))
    for event in [Fence("a", 1), Delivery("a", "held"), Delivery("b", "free")]:
        mailbox.feed(event)
    assert mailbox.next() == Reached(1)
    mailbox.feed(first)
    mailbox.feed(second)
    assert len(mailbox) == 4
    assert [mailbox.next() for _ in range(3)] == [first, second, Delivery("b", "free")]
    mailbox.feed(first)
    assert mailbox.drain() == [first, Delivery("a", "held")]
    assert len(mailbox) == 0


def test_a_halt_holds_back_everybody_but_what_is_urgent() -> None:
    mailbox = Mailbox()
    mailbox.feed(Delivery("peer", 1))
    mailbox.feed(Halt(7))
    assert mailbox.next() == Reached(7, is_halt=True), "it comes before what waits"
    assert mailbox.next() is None
    mailbox.feed(Delivery("supervision", 2, is_urgent=True))
    assert mailbox.next() == Delivery("supervision", 2, is_urgent=True)
    mailbox.feed(Resume(7))
    assert mailbox.next() == Delivery("peer", 1)


def test_a_halt_that_ends_leaves_its_fence_and_lifting_ends_both() -> None:
    mailbox = Mailbox()
    mailbox.feed(Fence("client", 7))
    assert mailbox.next() == Reached(7)
    mailbox.feed(Halt(7))
    assert mailbox.next() == Reached(7, is_halt=True)
    mailbox.feed(Delivery("client", 1))
    mailbox.feed(Delivery("peer", 2))
    mailbox.feed(Resume(7))
    assert mailbox.next() == Delivery("peer", 2)
    assert mailbox.next() is None, "what the fence's sender sent still waits"
    mailbox.feed(Halt(7))
    mailbox.feed(Lift(7))
    assert mailbox.next() == Delivery("client", 1), "a halt that was not taken out is called off"
    assert mailbox.next() is None


def test_what_is_put_back_comes_first_but_behind_the_fences_that_wait() -> None:
    mailbox = Mailbox()
    first, later, other = Delivery("a", 1), Delivery("a", 2), Delivery("b", 3)
    for event in (first, later, Fence("b", 1), other):
        mailbox.feed(event)
    assert mailbox.next() is first
    mailbox.put_back(first)
    assert mailbox.next() == Reached(1)
    assert mailbox.next() is later  # of another sender than the fence
    assert mailbox.next() is None
    mailbox.feed(Lift(1))
    again = mailbox.next()
    assert isinstance(again, Delivery)
    assert again.work == 1
    assert mailbox.next() is other


def test_what_is_put_back_comes_at_once_where_no_fence_waits() -> None:
    mailbox = Mailbox()
    first, later = Delivery("a", 1), Delivery("a", 2)
    mailbox.feed(first)
    mailbox.feed(later)
    assert mailbox.next() is first
    mailbox.put_back(first)
    assert mailbox.next() is first
    assert mailbox.next() is later
