"""What is refused says what was wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monarch import (
    OpaqueRef,
    RemoteException,
    Stream,
    call_on_shard_and_fetch,
    function_resolvers,
    grad_generator,
    inspect,
    no_mesh,
    remote,
)
from monarch.opaque_object import OpaqueObject


def _kept(x: Any) -> Any:
    return x.clone()


def _local() -> torch.Tensor:
    with no_mesh.activate():
        return torch.ones(2)


def _dropped_group(mesh: Any, x: Any) -> Any:
    group = mesh.process_group("gpus")
    group.drop()
    return remote(lambda group: None, propagate="inspect")(group)


def _rule_of_values(mesh: Any, x: Any) -> Any:
    return remote(_kept, propagate=lambda x: x.nonzero())(x)


# Each with what it has to say: what was wrong, and what to do.
AT_ISSUE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "a shard that is not there": (
        lambda mesh, x: inspect(x, gpus=7), "gpus=7 is out of range", "from 0 to 1",
    ),
    "a coordinate that is no number": (
        lambda mesh, x: inspect(x, gpus="a"), "gpus='a' is out of range", "from 0 to 1",
    ),
    "a shard to run on": (
        lambda mesh, x: call_on_shard_and_fetch(remote(_kept), x, shard={"gpus": -1}),
        "gpus=-1 is out of range", "from 0 to 1",
    ),
    "to_mesh of what is no mesh": (
        lambda mesh, x: x.to_mesh(3), "not a int", "takes a mesh of procs, or a slice",
    ),
    "reduce along what is no name": (
        lambda mesh, x: x.reduce(5), "not 5", r"reduce along \('gpus',\)",
    ),
    "a result of the wrong shape": (
        lambda mesh, x: x.reduce("gpus", out=torch.ones(5)), r"\[5\]", "Make out of that shape",
    ),
    "a local tensor to lend": (
        lambda mesh, x: Stream("other").borrow(_local()),
        "not a Tensor of this process", "while a mesh is active",
    ),
    "no function": (
        lambda mesh, x: remote(3)(x), "not 3", r"or the path of one \('package.module.name'\)",
    ),
    "no class": (lambda mesh, x: OpaqueObject(3), "not 3", r"or the path of one"),
    "a rule that needs values": (
        _rule_of_values, "needs the values of its tensors", "of shapes that follow from",
    ),
    "a gradient of what has none": (
        lambda mesh, x: next(grad_generator((x * 2).sum(), [x])),
        r"shape \(\) does not require grad", r"call requires_grad_\(\)",
    ),
    "a group that was dropped": (_dropped_group, "was dropped", "make it again, with process"),
    "an active mesh that is no part of the tensors'": (
        lambda mesh, x: _on_whole(mesh), "is not a subset of", "activate that one or a slice",
    ),
}  # fmt: skip


def _on_whole(mesh: Any) -> Any:
    with mesh.slice(gpus=1).activate():
        x = torch.ones(1)
    return remote(_kept).call(x)


@pytest.mark.parametrize("mistake", AT_ISSUE)
def test_what_is_refused_at_once(mesh: Any, mistake: str) -> None:
    act, what, advice = AT_ISSUE[mistake]
    with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)) as caught:
        act(mesh, torch.ones(2))
    assert re.search(what, str(caught.value)), caught.value
    assert re.search(advice, str(caught.value)), caught.value


def _issue(function: Any, *args: Any) -> Any:
    return remote(function, propagate=lambda *args: torch.ones(1))(*args)  # the user's line


def _elsewhere(key: Any) -> Any:
    ref = OpaqueRef(None)
    ref._key = torch.tensor(10**9)
    return ref.value


LATER: dict[str, tuple[Callable[[], Any], str, str]] = {
    "no such module": (
        lambda: _issue("no_such_module.function"),
        "ImportError: the path 'no_such_module.function' leads to nothing", "give the function",
    ),
    "no such function": (
        lambda: _issue("os.no_such_function"),
        "AttributeError: the path 'os.no_such_function' leads to nothing", "Correct it, or bring",
    ),
    "an object that is not there": (
        lambda: _issue(_elsewhere, torch.ones(1)),
        r"\(key 1000000000\) leads to no object", "keep what that returns",
    ),
    "another device": (
        lambda: _issue("monarch.worker._testing_function.set_device_udf_worker", 2),
        "are available to monarch worker", "Leave the device as it is",
    ),
    "a class that is no WorkerRemoteClass": (
        lambda: _issue("monarch.tensors.worker.remote_classes.construct_by_path",
                       "fractions.Fraction", 1, (), {}),
        "fractions.Fraction is not a WorkerRemoteClass", "derive it from",
    ),
}  # fmt: skip


@pytest.mark.long_but(1)
@pytest.mark.parametrize("mistake", LATER)
def test_what_fails_later_names_the_line(mesh: Any, mistake: str) -> None:
    act, what, advice = LATER[mistake]
    with pytest.raises(RemoteException) as caught:
        inspect(act())
    text = str(caught.value)
    assert "# the user's line" in text
    assert re.search(what, text), text
    assert re.search(advice, text), text
    # The worker's own stack, from there on, has nothing of how it got there.
    assert "definitions.py" not in text or text.count("definitions.py") == 1


def test_a_definition_that_cannot_be_made_fails_alike_each_time(mesh: Any) -> None:
    """A raised error collects the frames that it passes, and would keep what they hold."""
    texts = []
    for _ in range(3):
        with pytest.raises(RemoteException) as caught:
            inspect(_issue("no_such_module.function"))
        texts.append(caught.value.worker_error_string)
    assert texts[0] == texts[2]


def test_a_resolver_gives_what_workers_resolve(mesh: Any) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    class Found:
        def __init__(self, name: str) -> None:
            self.name = name

        def resolve(self) -> Any:
            return getattr(torch, self.name)

    def resolver(given: Any) -> Any:
        return Found(given.name) if isinstance(given, Named) else None

    from monarch.common.function import ResolvableFunctionFromPath

    function_resolvers.append(resolver)
    try:
        x = torch.ones(2)
        assert inspect(remote(Named("neg"), propagate=_kept)(x)).tolist() == [-1, -1]
        by_path = ResolvableFunctionFromPath("torch.exp")
        assert by_path.resolve() is torch.exp
        assert inspect(remote(by_path, propagate=_kept)(x * 0)).tolist() == [1, 1]
    finally:
        function_resolvers.remove(resolver)
