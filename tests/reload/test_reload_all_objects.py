"""Looks at all objects while other threads make some."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType

import pytest

from monarch_reload.live import all_objects, frozen
from monarch_reload.live.all_objects import are_all_seen, held_objects, objects_of
from tests.reload.conftest import Project

_LOOK_SECONDS = 0.3


@contextmanager
def _tuples_being_filled() -> Iterator[list[SystemError]]:
    """Yields what goes wrong for a thread that fills tuples all the while."""
    errors: list[SystemError] = []
    ended = threading.Event()

    def fill() -> None:
        while not ended.is_set():
            try:
                tuple(number + 1 for number in range(300))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=fill)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        yield errors
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(usual)


LOOKS: dict[str, Callable[[], object]] = {
    "of a kind": lambda: objects_of({FunctionType}),
    "are seen": lambda: are_all_seen([sys]),
    "held": lambda: held_objects(None, []),
    "young": lambda: held_objects(0, []),
}


@pytest.mark.long_but(1)
@pytest.mark.parametrize("look", LOOKS)
def test_other_threads_finish_their_tuples(look: str) -> None:
    with _tuples_being_filled() as errors:
        end = time.thread_time() + _LOOK_SECONDS
        while time.thread_time() < end:
            LOOKS[look]()
    assert not errors


@pytest.mark.parametrize("look", LOOKS)
def test_no_collection_gives_other_threads_a_turn_within_a_look(
    look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run finalizers, and what is in `gc.callbacks`: a tuple that was being filled
    could not be finished."""
    lists, were_on = all_objects._lists, []
    monkeypatch.setattr(
        all_objects, "_lists", lambda of: were_on.append(gc.isenabled()) or lists(of)
    )
    assert gc.isenabled()
    LOOKS[look]()
    assert gc.isenabled()
    assert were_on
    assert not any(were_on)
    gc.disable()
    try:
        LOOKS[look]()
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()


def test_other_threads_finish_their_tuples_while_code_is_replaced_and_audited(
    project: Project,
) -> None:
    source = "class A:\n    pass\nTABLE = ((A, 1), (A, 2))\ndef f():\n    return 0\n"
    module = project.load("filled_mod", source)
    with _tuples_being_filled() as errors:
        for number in range(3):
            project.edit("filled_mod", source.replace("return 0", f"return {number + 1}"))
            assert project.reloader.audit().ok
    assert module.f() == 3
    assert not errors


def test_a_look_keeps_nothing() -> None:
    gc.disable()
    try:
        one = tuple([] for _ in range(5))
        before = sys.getrefcount(one)
        for look in LOOKS.values():
            look()
            assert sys.getrefcount(one) == before
    finally:
        gc.enable()


def test_only_tuples_that_something_holds_are_found() -> None:
    class Pair(tuple[int, int]):
        pass

    loose, inner, pair = tuple([] for _ in range(2)), tuple([] for _ in range(3)), Pair((1, 2))
    holder = [(inner, 1)]
    found = held_objects(None, [])
    assert id(loose) not in found, "only a frame holds it, as it does one that is being filled"
    assert found[id(inner)] is inner
    assert found[id(holder)] is holder
    assert found[id(pair)] is pair
    assert held_objects(None, [[loose]])[id(loose)] is loose


def test_classes_that_have_no_hash_are_looked_past() -> None:
    class Odd(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("code of others ran")

        __hash__ = None  # type: ignore[assignment]

    class Thing(metaclass=Odd):
        pass

    thing = Thing()
    assert objects_of([Thing]) == [thing]
    assert objects_of([FunctionType])
    assert objects_of([]) == []


def test_only_modules_that_were_there_at_a_freeze_are_looked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.load("earlier_mod", "X = 1\n")
    gc.freeze()
    project.load("later_mod", "X = 1\n")
    looks: list[object] = []
    monkeypatch.setattr(frozen, "are_all_seen", lambda things: looks.append(things) or True)
    assert not frozen.thaw(["later_mod"])
    assert not looks
    assert not frozen.thaw(["earlier_mod"])
    assert not frozen.thaw(["earlier_mod"])
    assert len(looks) == 1
    monkeypatch.undo()
    gc.freeze()
    assert frozen.thaw(["later_mod"])
    assert not frozen.thaw(["later_mod"])
