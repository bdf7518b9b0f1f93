"""The order in which an actor handles its messages.

- Messages of one sender are handled in the order in which they arrived, which is the order
  in which they were sent.
- A fence holds back what its own sender sent after it, until it is lifted. Other senders are
  not held: an actor that is still busy may call one that already waits at the fence, and must
  get its answer, or neither would ever move on.
- What concerns the actor itself, and not one of its callers, is urgent: it comes before all
  messages that wait, and passes every fence.

A fence is how new code is switched in between the same two messages of the owner on every
rank: messages before it are done when it is reached, those after it wait.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

__all__ = ["Delivery", "Fence", "Lift", "Mailbox", "Reached"]


class Delivery(NamedTuple):
    """Something to do, sent by ``sender``."""

    sender: str
    work: Any
    is_urgent: bool = False


class Fence(NamedTuple):
    """Hold back what ``sender`` sends after this."""

    sender: str
    number: int


class Lift(NamedTuple):
    """Let go what fence ``number`` holds back."""

    number: int


class Reached(NamedTuple):
    """All that was sent before fence ``number`` has been taken out."""

    number: int


class Mailbox:
    """Feed it what arrives; ask it what is next. Belongs to one thread."""

    def __init__(self) -> None:
        self._urgent: deque[Delivery] = deque()
        self._ready: deque[Delivery | Fence] = deque()
        self._fences: dict[str, int] = {}
        self._held: dict[str, deque[Delivery | Fence]] = {}

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ready) + sum(map(len, self._held.values()))

    def feed(self, event: Delivery | Fence | Lift) -> None:
        if isinstance(event, Lift):
            self._lift(event.number)
        elif isinstance(event, Delivery) and event.is_urgent:
            self._urgent.append(event)
        elif event.sender in self._fences:
            self._held[event.sender].append(event)
        else:
            self._ready.append(event)

    def next(self) -> Delivery | Reached | None:
        """The next thing to do; ``None`` when there is none."""
        if self._urgent:
            return self._urgent.popleft()
        if not self._ready:
            return None
        event = self._ready.popleft()
        if isinstance(event, Fence):
            self._raise(event)
            return Reached(event.number)
        return event

    def drain(self) -> list[Delivery | Fence]:
        """All that is left, held back or not; the mailbox is empty after."""
        held = (event for held in self._held.values() for event in held)
        left = [*self._urgent, *self._ready, *held]
        self._urgent.clear()
        self._ready.clear()
        self._held.clear()
        self._fences.clear()
        return left

    def _raise(self, fence: Fence) -> None:
        self._fences[fence.sender] = fence.number
        self._held[fence.sender] = deque(e for e in self._ready if e.sender == fence.sender)
        self._ready = deque(e for e in self._ready if e.sender != fence.sender)

    def _lift(self, number: int) -> None:
        for sender in [name for name, fence in self._fences.items() if fence == number]:
            del self._fences[sender]
            self._ready.extend(self._held.pop(sender))
