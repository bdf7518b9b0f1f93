"""The order in which an actor handles its messages.

- Messages of one sender are handled in the order in which they arrived, which is the order in which
  they were sent.
- A fence holds back the messages that its own sender sent after it, until it is lifted. Other
  senders' messages pass: an actor that is still busy may call an actor that already waits at the
  fence, and must get its answer, or neither would ever move on.
- A message that concerns the actor itself, and not one of its callers, is urgent: it comes before
  all messages that wait, and passes every fence.
- A halt is urgent too, and holds back all messages, until the actor may resume.

With a fence, every rank switches to new code between the same two messages of the owner: messages
before it are done when it is reached, and those after it wait. A halt makes sure that no actor runs
anything while the ranks switch, once all of them have reached their fences.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """An item to handle, sent by ``sender``."""

    sender: str
    work: Any
    is_urgent: bool = False


class Fence(NamedTuple):
    """Hold back the messages of ``sender`` that come after this event."""

    sender: str
    number: int


class Lift(NamedTuple):
    """Release the messages that the fence ``number`` holds back, and end the halt with the same
    number.
    """

    number: int


class Halt(NamedTuple):
    """From here on, hand out no messages of callers, until the halt ``number`` ends."""

    number: int


class Resume(NamedTuple):
    """End the halt ``number``. A fence with the same number stays."""

    number: int


class Reached(NamedTuple):
    """The mailbox has come to the fence ``number``: every message sent before it has been taken
    out.

    ``is_halt``: it has come to the halt of that number instead, and the work on all messages that
    were taken out is done.
    """

    number: int
    is_halt: bool = False


class Mailbox:
    """A queue of messages: `put` adds an arrived message, `next` removes the next one to handle.
    Belongs to one thread."""

    def __init__(self) -> None:
        self._urgent: deque[Delivery | Halt] = deque()
        self._ready: deque[Delivery | Fence] = deque()
        self._fences: dict[str, int] = {}
        self._held: dict[str, deque[Delivery | Fence]] = {}
        self._halts: set[int] = set()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ready) + sum(map(len, self._held.values()))

    @property
    def is_holding(self) -> bool:
        """Whether a message waits behind a fence. From any thread."""
        return any(list(self._held.values()))

    def feed(self, event: Delivery | Fence | Lift | Halt | Resume) -> None:
        if isinstance(event, Lift):
            self._lift(event.number)
        elif isinstance(event, Resume):
            self._resume(event.number)
        elif isinstance(event, Halt) or (isinstance(event, Delivery) and event.is_urgent):
            self._urgent.append(event)
        elif event.sender in self._fences:
            self._held[event.sender].append(event)
        else:
            self._ready.append(event)

    def next(self) -> Delivery | Reached | None:
        """Remove and return the next item to handle; ``None`` if there is none."""
        if self._urgent:
            first = self._urgent.popleft()
            if isinstance(first, Delivery):
                return first
            self._halts.add(first.number)
            return Reached(first.number, is_halt=True)
        if self._halts or not self._ready:
            return None
        event = self._ready.popleft()
        if isinstance(event, Fence):
            self._raise(event)
            return Reached(event.number)
        return event

    def put_back(self, delivery: Delivery) -> None:
        """Put a delivery that was taken out back at the front, so that `next` returns it again.

        Fences at the front stay before it. To be held back by them, it then counts as a message of
        the sender whose messages the first of them holds back.
        """
        fences = [event for event in self._ready if isinstance(event, Fence)]
        rest = [event for event in self._ready if not isinstance(event, Fence)]
        if fences:
            delivery = delivery._replace(sender=fences[0].sender)
        self._ready = deque([*fences, delivery, *rest])

    def drain(self) -> list[Delivery | Fence]:
        """Return all remaining deliveries and fences, held back or not, and empty the mailbox."""
        held = (event for held in self._held.values() for event in held)
        urgent = (event for event in self._urgent if isinstance(event, Delivery))
        events = [*urgent, *self._ready, *held]
        self._urgent.clear()
        self._ready.clear()
        self._held.clear()
        self._fences.clear()
        self._halts.clear()
        return events

    def _raise(self, fence: Fence) -> None:
        self._fences[fence.sender] = fence.number
        self._held[fence.sender] = deque(e for e in self._ready if e.sender == fence.sender)
        self._ready = deque(e for e in self._ready if e.sender != fence.sender)

    def _resume(self, number: int) -> None:
        self._halts.discard(number)
        # It may have been called off before it was taken out.
        self._urgent = deque(e for e in self._urgent if e != Halt(number))

    def _lift(self, number: int) -> None:
        self._resume(number)
        for sender in [name for name, fence in self._fences.items() if fence == number]:
            del self._fences[sender]
            self._ready.extend(self._held.pop(sender))
