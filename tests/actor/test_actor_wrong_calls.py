"""What somebody who comes from Ray, Lightning or torch types first has a sentence that says what to
type."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import Actor, ActorMesh, endpoint, this_host

pytestmark = pytest.mark.in_a_world_too


class Adder(Actor):
    def __init__(self, size: Any = 1) -> None:
        self.size = size

    @endpoint
    def add(self, x: Any) -> Any:
        return 1

    @endpoint
    def lock(self) -> Any:
        return {"mine": threading.Lock()}

    def plain(self) -> None: ...


class Plain: ...


class Model:
    def __init__(self) -> None:
        self.parts = {"a": [1, threading.Lock()]}


def _hosts() -> Any:
    return this_host()


async def _awaited(value: Any) -> Any:
    return await value


@pytest.fixture
def meshes() -> Iterator[tuple[Any, Any]]:
    procs = this_host().spawn_procs({"hosts": 1, "gpus": 2})
    yield procs, procs.spawn("adder", Adder)
    procs.stop().get()


_CASES: list[tuple[str, Callable[[Any, Any], Any], type[Exception], str]] = [
    ("called", lambda p, a: a.add(1), TypeError, r"`adder\.add\.call\(1\)\.get\(\)` calls it on 2"),
    ("remote", lambda p, a: a.add.remote(1), AttributeError, r"`adder\.add\.call\(\.\.\.\)\.get"),
    ("misspelt", lambda p, a: a.add.cal(1), AttributeError, "did you mean 'call'"),
    ("get", lambda p, a: a.add.get(), AttributeError, r"adder\.add\.call\(\.\.\.\)\.get\(\)"),
    ("plain.remote", lambda p, a: a.plain.remote(), AttributeError, "add a @endpoint decorator"),
    ("class.remote", lambda p, a: Adder.remote(), AttributeError, r"\.spawn\('adder', Adder"),
    ("class.options", lambda p, a: Adder.options(procs=1), AttributeError,
     "type object 'Adder' has no attribute 'options': that is Ray's"),
    ("await endpoint", lambda p, a: asyncio.run(_awaited(a.add)), TypeError, r"`await adder\."),
    ("slice(gpu)", lambda p, a: p.slice(gpu=1), TypeError, r"gpus \(2\)\. Did you mean 'gpus'\?"),
    ("slice(7)", lambda p, a: p.slice(gpus=7), IndexError, r"gpus=7, and gpus has 2 \(0 to 1\)"),
    ("slice(text)", lambda p, a: a.slice(gpus="a"), TypeError, "neither a number nor a slice"),
    ("slice by place", lambda p, a: p.slice(0), TypeError, r"as in `\.slice\(hosts=0, gpus=0\)`"),
    ("mesh[0]", lambda p, a: a[0], TypeError, r"`\.slice\(hosts=0, gpus=0\)` is one member"),
    ("size(gpu)", lambda p, a: p.size("gpu"), KeyError, "Did you mean 'gpus'"),
    (
        "unpicklable", lambda p, a: a.add.call(Model()), TypeError,
        r"adder\.add: argument 'x' cannot be sent: x\.parts\['a'\]\[1\] is a _thread\.lock",
    ),
    (
        "unpicklable by name", lambda p, a: a.add.call(x=threading.Lock()), TypeError,
        r"argument 'x' cannot be sent, it is a _thread\.lock",
    ),
    (
        "unpicklable in a constructor", lambda p, a: p.spawn("m", Adder, Model()), TypeError,
        r"Adder\(\): argument 'size' cannot be sent: size\.parts",
    ),
    ("swapped", lambda p, a: p.spawn(Adder, "adder"), TypeError, r"\.spawn\('adder', Adder,"),
    ("no actor", lambda p, a: p.spawn("m", Plain), ValueError, r"class Plain\(Actor\)"),
    ("an object", lambda p, a: p.spawn("m", Adder()), ValueError, r"give the class"),
    ("call_one", lambda p, a: a.add.call_one(1), ValueError, r"`adder\.slice\(hosts=0, gpus=0\)`"),
    ("future.item", lambda p, a: a.add.call(1).item(gpus=0), AttributeError, r"`\.get\(\)\.item`"),
    ("future[0]", lambda p, a: a.add.call(1)[0], TypeError, r"`\.get\(\)` \(or `await`\) gives it"),
    ("iter(future)", lambda p, a: list(a.add.call(1)), TypeError, "an answer to come"),
    ("timeout", lambda p, a: a.add.call(1).get(timeout="1"), ValueError, "invalid timeout '1'"),
    ("values[0]", lambda p, a: a.add.call(1).get()[0], TypeError, r"\.item\(hosts=0, gpus=0\)"),
    ("values.get", lambda p, a: a.add.call(1).get().get(), TypeError, r"`\.values\(\)` all"),
    ("item(gpu)", lambda p, a: a.add.call(1).get().item(gpu=0), KeyError, "Did you mean 'gpus'"),
    ("item(0)", lambda p, a: a.add.call(1).get().item(0), TypeError, "coordinates by name"),
    ("item(9)", lambda p, a: a.add.call(1).get().item(hosts=0, gpus=9), IndexError, "gpus has 2"),
    ("spawn_procs(4)", lambda p, a: this_host().spawn_procs(4), TypeError, r"\(\{'gpus': 4\}\)"),
    (
        "spawn_procs(gpus)", lambda p, a: this_host().spawn_procs(gpus=4), TypeError,
        r"go into a dict: `spawn_procs\(\{'gpus': 4\}\)`",
    ),
    (
        "spawn_procs(text)", lambda p, a: _hosts().spawn_procs({"gpus": "4"}), TypeError,
        "has the size '4'",
    ),
    ("hosts.spawn", lambda p, a: this_host().spawn("a", Adder), AttributeError, "live in procs"),
    ("procs.spawn_procs", lambda p, a: p.spawn_procs(), AttributeError, "made on hosts"),
    ("ProcMesh()", lambda p, a: type(p)(), TypeError, "is made by `this_host"),
    ("HostMesh()", lambda p, a: type(_hosts())(), TypeError, "is made by `this_host"),
    ("ActorMesh(cls)", lambda p, a: ActorMesh(Adder), TypeError, r"`procs\.spawn\('name'"),
    ("monarch.get", lambda p, a: monarch.get(1), AttributeError, r"`foo\.add\.call\(1\)\.get\(\)`"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("act", "error", "expected"), [case[1:] for case in _CASES], ids=[case[0] for case in _CASES]
)
def test_a_wrong_call_is_told_what_to_type(
    act: Callable[[Any, Any], Any],
    error: type[Exception],
    expected: str,
    meshes: tuple[Any, Any],
) -> None:
    with pytest.raises(error, match=expected):
        act(*meshes)


def test_an_answer_that_cannot_be_sent_names_what_is_in_it(meshes: tuple[Any, Any]) -> None:
    with pytest.raises(Exception, match=r"lock returned what cannot be sent: its \['mine'\] is a"):
        meshes[1].lock.call().get()


def test_what_is_printed_of_futures_and_endpoints_says_what_they_are(
    meshes: tuple[Any, Any],
) -> None:
    future = meshes[1].add.call(1)
    assert "get() or await" in repr(future)
    future.get()
    assert repr(future) == "<Future: the answer is there; .get() or await gives it>"
    assert repr(meshes[1].add) == "<endpoint adder.add on 2 ranks>"


def test_an_actor_may_have_an_endpoint_called_remote() -> None:
    class Mine(Actor):
        @endpoint
        def remote(self) -> str:
            return "mine"

    procs = this_host().spawn_procs({"gpus": 1})
    assert procs.spawn("mine", Mine).remote.call_one().get() == "mine"
    with pytest.raises(AttributeError, match="has no endpoint 'remote'"):
        _ = procs.spawn("adder", Adder).remote
