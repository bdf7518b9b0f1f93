"""What becomes of a push whose author has died, where hosts are slow to say what they have."""

from __future__ import annotations

from typing import Any

from monarch.core.code_switch.table import successor_of
from monarch.runtime.workspace.code_switch.author_lost import AuthorLost
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan


class Slow:
    """An answer that takes half a minute, on a loaded machine."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.value = self
        self.error = ""
        self.body = body

    def wait(self, seconds: float | None = None) -> bool:
        return seconds is None or seconds >= 30


class Node:
    uid = "root"

    def __init__(self) -> None:
        self.done: list[str] = []

    def address_of(self, uid: str) -> str:
        return uid

    def request(self, host: str, make: Any, data: bytes = b"") -> Slow:
        self.done.append(f"ask {host}")
        return Slow({"generation": 7, "digest": "new"})


class Owner:
    """One that was halted when its author died, or was not."""

    def __init__(self, *, is_halted: bool) -> None:
        self.done: list[str] = []
        self._is_halted = is_halted

    def inquire(self, generation: int) -> ReloadOutcome:
        late = [] if self._is_halted else [RefusedFile("owner", "was not halted")]
        return ReloadOutcome(late=late)

    def patch(self, generation: int, behind: Any = ()) -> ReloadOutcome:
        self.done.append(f"patch {generation}")
        return ReloadOutcome()

    def go(self, generation: int) -> ReloadOutcome:
        self.done.append(f"go {generation}")
        return ReloadOutcome()

    def revert(self, generation: int) -> None:
        self.done.append("revert")


def test_what_a_slow_host_shows_already_is_not_taken_back() -> None:
    node: Any = Node()
    owner: Any = Owner(is_halted=True)
    plan = ReloadPlan(7, "new", "auto", hosts={"host": []})
    AuthorLost(node, plan, [owner], successor_of("author", 1)).settle()
    assert owner.done == ["patch 7", "go 7"]


def test_hosts_drop_what_was_staged_before_anybody_may_push_again() -> None:
    """What comes next has the same number, and would be dropped."""
    node: Any = Node()
    owner: Any = Owner(is_halted=False)
    plan = ReloadPlan(8, "newer", "auto", hosts={"a": [], "b": []})
    owner.done = node.done
    AuthorLost(node, plan, [owner], successor_of("author", 1)).settle()
    assert node.done == ["ask a", "ask b", "revert"]
