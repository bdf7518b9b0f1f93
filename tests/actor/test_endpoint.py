"""Endpoints: a call and its answer, and how an actor finds the method that a call is for."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, ActorError, endpoint, this_proc
from monarch.runtime.cells.endpoint_spec import EndpointSpec, finder, surrounded
from monarch.wire.message import PING, Call


class Base(Actor):
    @endpoint
    def who(self) -> str:
        return "base"

    def plain(self) -> str:
        return "plain"


class Derived(Base):
    @endpoint
    def who(self) -> str:
        return "derived"


def _call(method: str) -> Call:
    return Call(actor="a", method=method, port=1, rank=0, sender="me", labels=(), sizes=())


def test_a_call_is_answered_by_the_most_derived_endpoint() -> None:
    one = this_proc().spawn("one", Derived)
    assert one.who.call_one().get(timeout=10) == "derived"


def test_an_endpoint_that_is_not_there_is_named() -> None:
    find = finder("one", lambda: Derived)
    assert find(_call("who")).method(Derived()) == "derived"
    assert find(_call("plain")).method(Derived()) == "plain"
    with pytest.raises(AttributeError, match="Derived has no endpoint 'gone'"):
        find(_call("gone"))


def test_the_class_of_the_moment_is_asked() -> None:
    now: list[type] = [Base]
    find = finder("one", lambda: now[0])
    assert find(_call("who")).method(Base()) == "base"
    now[0] = Derived
    assert find(_call("who")).method(Derived()) == "derived"


def test_what_surrounds_endpoints_sees_all_but_pings() -> None:
    seen: list[str] = []

    def wrap(name: str, method: Any) -> Any:
        def around(*args: Any) -> Any:
            seen.append(name)
            return method(*args)

        return around

    find = surrounded(finder("one", lambda: Derived), wrap)
    assert find(_call("who")).method(Derived()) == "derived"
    assert isinstance(find(_call(PING)), EndpointSpec)
    with pytest.raises(AttributeError, match="no endpoint 'gone'"):
        find(_call("gone")).method(Derived())
    assert seen == ["who", "gone"]


def test_an_error_of_an_endpoint_is_raised_at_the_caller() -> None:
    class Fails(Actor):
        @endpoint
        def fail(self) -> None:
            raise ValueError("no")

    with pytest.raises(ActorError, match="no"):
        this_proc().spawn("fails", Fails).fail.call_one().get(timeout=10)
