"""The traps that the study of the subject met, each with a test; and live code: breakpoints and
reloads inside of remote functions.

`PITFALLS` is the list. What has a test elsewhere is named by its function there.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from monarch import RemoteException, Stream, grad_generator, inspect, no_mesh, remote
from monarch import compile as record
from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.config import configured
from monarch.tensors.client.ambient import MAIN
from monarch.tensors.core.templates import TemplateCache
from tests.debugger.typist import console, wait_for_holds
from tests.tensors.conftest import WITH_TORCH
from tests.workspace.conftest import Project

PITFALLS = {
    "version counters stand still inside of dispatch: writes come from the schema": "writes",
    "version counters do work in remote functions": (
        "operations.test_what_comes_out_is_found_out_on_a_shard_and_remembered"
    ),
    "two modes on the stack both see an operation": "operations.test_active_from_the_call_on",
    "an operation of autograd's goes to the mesh of its tensors": "backward_elsewhere",
    "unpickling a fetched value dispatches": (
        "operations.test_answers_of_endpoints_are_local_whatever_is_active"
    ),
    "optimizers mark their steps for the profiler": "profiler",
    "tolist and numpy are refused by torch itself": "no_values",
    "Python swallows a TypeError of an operator": (
        "operations.test_arguments_that_cannot_be_are_named"
    ),
    "in-place operations change the shape of the handle": (
        "operations.test_operations_that_change_shape_in_place_change_the_handle"
    ),
    "undefined results keep their place": (
        "operations.test_results_that_are_undefined_keep_their_place"
    ),
    "fake tensors log a user's mistake": (
        "operations.test_wrong_shapes_raise_where_they_are_written"
    ),
    "an in-place operation gives its handle, a remote function a new one": "handles",
    "a failed write spoils all views": "operations.test_a_failed_write_spoils_all_views",
    "a failed rank takes part in collectives": (
        "operations.test_one_rank_that_fails_does_not_hang_the_others"
    ),
    "shapes that depend on values": "operations.test_what_depends_on_values_says_what_to_do",
    "numbers that a recording read": (
        "operations.test_a_number_that_a_recording_read_is_a_condition_of_it"
    ),
    "numbers that make the shape; 1, 1.0 and True": (
        "operations.test_equal_numbers_of_other_types_are_other_operations"
    ),
    "numbers of a user's rule may make the shape": "operations.test_numbers_for_a_rule_count",
    "a raised failure keeps frames, and they tensors": (
        "operations.test_a_raised_failure_does_not_keep_tensors"
    ),
    "a generator is copied to each worker": "generators",
    "unseeded ranks differ": "unseeded",
    "copies and pickles of handles": "operations.test_copies_are_copies",
    "a handle is not pickled by itself": "operations.test_tensors_do_not_leave_their_procs",
    "nodes of custom autograd functions cannot be called": "custom_nodes",
    "a send reads its buffer later": "training.test_copies_to_other_meshes",
    "a view that dies with a recording does not drop its storage": (
        "operations.test_what_a_recording_made_ends_with_it"
    ),
    "each shape is a template, and the cache has an end": "cache_ends",
    "two streams in one process group": "groups",
    "actors get tensors in the order of calls": (
        "operations.test_actors_get_the_local_tensors_in_order"
    ),
    "a stream waits until the actor that it lent to has finished": (
        "operations.test_actors_get_the_local_tensors_in_order"
    ),
    "worked without special cases": "common_operations",
    "mixed precision, checkpoints and whole layers work, too": (
        "objects.test_worked_without_special_cases"
    ),
    "real results may be laid out otherwise than fakes": (
        "looks.test_real_results_look_as_their_handles_do"
    ),
    "handles die in another order from one trace to the next": (
        "looks.test_a_recording_does_not_depend_on_when_its_handles_die"
    ),
    "formals of a recording are compared by place": (
        "looks.test_arguments_of_a_recording_count_by_their_places"
    ),
    "a subclass's torch function costs more than an operation": (
        "looks.test_functions_of_torch_take_handles_without_asking_python"
    ),
    "rank tensors before a mesh was ever active": (
        "looks.test_ranks_are_there_before_a_mesh_was_active"
    ),
    "numbers that a schedule changes miss nothing": (
        "operations.test_what_was_seen_misses_no_more"
    ),
    "what was remembered of a function ends with its reload": (
        "a_reload_between_two_operations_is_on_all_ranks"
    ),
    "all keys of objects look the same": "surface.test_modules_have_parameters_of_their_own",
}


def test_every_pitfall_has_a_test() -> None:
    for where in PITFALLS.values():
        file, _, name = where.rpartition(".")
        module = f"tests.tensors.test_tensors_{file or 'pitfalls'}"
        assert hasattr(importlib.import_module(module), name if file else f"test_{name}"), where


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A folder of modules that the procs import from."""
    root = tmp_path_factory.mktemp("project")
    sys.path.insert(0, str(root))
    yield Project(root)
    sys.path.remove(str(root))


@pytest.fixture(scope="module")
def procs(project: Project) -> Iterator[ProcMesh]:
    """Two procs, whose calls wait at breakpoints as at a terminal."""
    with configured(breakpoint="wait"):
        mesh = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
        yield mesh
        mesh.stop().get()


@pytest.mark.long
def test_writes(mesh: Any) -> None:
    x = torch.ones(2)
    view = x.view(2, 1)
    for write in (
        lambda: torch.add(torch.ones(2), 1, out=x),
        lambda: x.copy_(torch.full((2,), 3.0)),
        lambda: torch._foreach_add_([x], 1.0),
        lambda: view.mul_(2),
        lambda: x.data.sub_(1),
    ):
        write()
    assert inspect(x).tolist() == [7, 7]


def test_backward_elsewhere(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(2).requires_grad_()
        y = (x * 3).sum()
    y.backward()  # No mesh is active here.
    with no_mesh.activate():
        (x * 2).sum().backward()
    assert inspect(x.grad).tolist() == [5, 5]


def test_profiler(mesh: Any) -> None:
    with torch.profiler.record_function("a step"):
        x = torch.ones(1)
    optimizer = torch.optim.SGD([x.requires_grad_()], 0.5)
    x.sum().backward()
    optimizer.step()
    assert inspect(x.detach()).tolist() == [0.5]


def test_no_values(mesh: Any) -> None:
    x = torch.ones(2)
    for wrong in (x.tolist, x.numpy, x.__array__):
        with pytest.raises(TypeError, match=r"fetch_shard\(t\)"):
            wrong()
    assert torch.tensor(2.0).tolist() == 2.0


def test_handles(mesh: Any) -> None:
    x = torch.ones(2)
    assert x.add_(1) is x
    same = remote(lambda x: x, propagate=lambda x: x)(x)
    assert same is not x
    same.add_(1)
    assert inspect(x).tolist() == [3, 3]

    @remote(propagate=lambda x: x)
    def fails(x: Any) -> Any:
        raise ValueError("not even this")

    result = fails(x)
    with pytest.raises(RemoteException, match="not even this"):
        inspect(result)
    assert inspect(x).tolist() == [3, 3]  # It was not written to.


def test_generators(mesh: Any) -> None:
    with no_mesh.activate():
        generator = torch.Generator().manual_seed(3)
        local = torch.rand(2, generator=torch.Generator().manual_seed(3))
    draw = remote(
        lambda generator: torch.rand(2, generator=generator),
        propagate=lambda generator: torch.empty(2),
    )
    first, second = draw(generator), draw(generator)
    for n in range(2):
        assert inspect(first, gpus=n).tolist() == local.tolist()
        # The copies go on; the one here does not.
        assert inspect(second, gpus=n).tolist() == inspect(second).tolist() != local.tolist()
    with no_mesh.activate():
        assert torch.rand(2, generator=generator).tolist() == local.tolist()


def test_generators_of_equal_seeds_are_two_and_one_that_is_seeded_anew_starts_anew(
    mesh: Any,
) -> None:
    with no_mesh.activate():
        one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
        drawn = [torch.rand(1, generator=other).item() for _ in range(6)]
        other.manual_seed(3)
    draw = remote(
        lambda generator: torch.rand(1, generator=generator),
        propagate=lambda generator: torch.empty(1),
    )
    for number in range(6):
        others = [torch.Generator() for _ in range(100)]  # Memory is handed out in between.
        assert inspect(draw(one)).tolist() == [drawn[number]], len(others)
    assert inspect(draw(other)).tolist() == [drawn[0]]
    one.manual_seed(4)
    again = inspect(draw(one)).tolist()
    with no_mesh.activate():
        assert again == torch.rand(1, generator=torch.Generator().manual_seed(4)).tolist()


def test_unseeded(mesh: Any) -> None:
    x = torch.rand(8)
    assert inspect(x, gpus=0).tolist() != inspect(x, gpus=1).tolist()


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: float, x: Any, name: str) -> Any:
        ctx.number = number
        return x * number

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0] * ctx.number, None


def test_custom_nodes(mesh: Any) -> None:
    x = torch.ones(2).requires_grad_()
    y = _Double.apply(2.0, x * 3, "name") * 5
    (grad,) = grad_generator(y.sum(), [x])
    assert inspect(grad).tolist() == [30, 30]


def test_cache_ends(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mesh.client
    client.settle()
    before = client.workers.num_values.call().get().values()[0][1]
    monkeypatch.setattr(client, "cache", TemplateCache(8))
    for n in range(1, 40):
        torch.ones(n)
    client.settle()
    client.settle()  # What gave way is told with the batch after.
    assert len(client.cache) <= 9
    templates = client.workers.num_values.call().get().values()[0][1]
    assert templates - before <= 13
    assert inspect(torch.ones(3)).tolist() == [1, 1, 1]


def _common() -> list[Any]:
    x = torch.linspace(-1, 1, 48).view(2, 3, 8)
    image = torch.linspace(0, 1, 32).view(2, 1, 4, 4)
    modules = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Embedding(5, 3)]
    for module in modules:
        for parameter in module.parameters():
            parameter.data.fill_(0.5)
    conv, norm, embedding = modules
    out = norm(conv(image)).pow(2).sum() + embedding(torch.tensor([1, 4])).sum()
    q = x.clone().requires_grad_()
    (out + nn.functional.scaled_dot_product_attention(q, q, q).sum()).backward()
    nn.utils.clip_grad_norm_(conv.parameters(), 1.0)
    q.data = q.data * 2
    linear = nn.Linear(2, 2)
    for parameter in linear.parameters():
        parameter.data = torch.full_like(parameter, 0.25)
    linear.double()  # Sets the data of parameters, too.
    return [
        *(one.detach() for one in linear.parameters()), linear(torch.ones(1, 2).double()).detach(),
        q.grad, conv.weight.grad, embedding.weight.grad, norm.running_mean, q.detach(),
        torch.fft.rfft(x).abs(), torch.linalg.svdvals(x[0]), torch.einsum("abc,abc->ab", x, x),
        nn.functional.dropout(x, 0.5, training=False), torch.vmap(torch.sin)(x),
        torch.func.grad(lambda v: (v * v).sum())(x), *torch._foreach_add([x], 1.0),
    ]  # fmt: skip


def test_common_operations(mesh: Any) -> None:
    found = inspect(_common())
    with no_mesh.activate():
        for n, (own, wanted) in enumerate(zip(found, _common(), strict=True)):
            torch.testing.assert_close(own, wanted, msg=lambda text, n=n: f"{n}: {text}")


# Live code


def test_a_breakpoint_inside_of_a_remote_function(mesh: Any) -> None:
    @remote(propagate=lambda x, rank: x.clone())
    def looks(x: Any, rank: Any) -> Any:
        if int(rank) == 1:
            scale = 10
            breakpoint()
            return x * scale
        return x + 1

    y = looks(torch.ones(2), mesh.rank("gpus"))
    mesh.client.flush()
    (hold,) = wait_for_holds(1)
    assert (hold.actor, hold.rank, hold.reason) == ("tensor_worker", 1, "breakpoint()")
    shown = console("attach tensor_worker 1", "p x.tolist()", "p scale", "scale = 30", "c")
    assert "(Pdb) p x.tolist()\n[1.0, 1.0]\n" in shown
    assert "(Pdb) p scale\n10\n" in shown
    assert inspect(y, gpus=1).tolist() == [30, 30]
    assert inspect(y, gpus=0).tolist() == [2, 2]
    wait_for_holds(0)


class Beside(Actor):
    """Of the user's, in the procs of the workers."""

    @endpoint
    def echo(self, value: int) -> int:
        return value


@pytest.mark.long
def test_a_rank_is_stopped_while_what_it_is_to_do_is_recorded(procs: ProcMesh, mesh: Any) -> None:
    """The recording is what it would have been, and is stopped in by a breakpoint of its own."""
    shown = []

    @remote(propagate=lambda x: x.clone())
    def grown(x: Any) -> Any:
        by = 1
        return x + by  # The line.

    @record(verify=False)
    def step(x: Any) -> Any:
        y = grown(x)
        shown.append(console("stop 1"))
        return y * 2

    x = torch.ones(2)
    assert "no actor of yours runs there" in console("stop 1")
    beside = procs.spawn("beside", Beside)
    assert beside.echo.call(1).get(timeout=60).values() == [1, 1]
    first = step(x)
    assert shown[0].count("beside rank 1 stops at its next call") == 1
    assert [inspect(first, gpus=n).tolist() for n in range(2)] == [[4, 4]] * 2
    answer = beside.echo.call(2)
    (hold,) = wait_for_holds(1)
    assert (hold.actor, hold.rank, hold.reason.partition(" by ")[0]) == ("beside", 1, "stopped")
    # Its worker is none of the user's: it goes on.
    assert [inspect(step(x), gpus=n).tolist() for n in range(2)] == [[4, 4]] * 2
    console("continue")
    assert answer.get(timeout=60).values() == [2, 2]
    wait_for_holds(0)
    line = Path(__file__).read_text().partition("x + by  # The line.")[0].count("\n") + 1
    console(f"break test_tensors_pitfalls.py:{line} ranks 1")
    try:
        y = step(x)
        mesh.client.flush()
        (hold,) = wait_for_holds(1)
        assert (hold.actor, hold.rank, hold.line) == ("tensor_worker", 1, line)
        console("break clear", "attach tensor_worker 1", "by = 30", "c")
        assert [inspect(y, gpus=n).tolist() for n in range(2)] == [[4, 4], [62, 62]]
    finally:
        console("break clear")
    assert len(shown) == 1  # Recorded once, and replayed.


FUNCTIONS = """
from monarch import remote


def grown(x):
    return x + 1


def rows(x):
    return x[:1].clone()


grow = remote(grown, propagate=lambda x: x.clone())
cut = remote(rows)
"""


@pytest.mark.long
def test_a_reload_between_two_operations_is_on_all_ranks(procs: ProcMesh, project: Project) -> None:
    project.write("edited_functions.py", FUNCTIONS)
    assert project.sync(procs).ok
    module = project.load("edited_functions")
    named = remote("edited_functions.rows")
    with procs.activate():
        x = torch.ones(3)
        held = [module.grow(x), module.cut(x), named(x)]
        assert [inspect(one, gpus=1).tolist() for one in held] == [[2, 2, 2], [1], [1]]
    project.edit("edited_functions.py", "x + 1", "x + 5")
    project.edit("edited_functions.py", "x[:1]", "x[:2]")
    assert project.sync(procs).ok
    with procs.activate():
        for n in range(2):
            assert inspect(module.grow(x), gpus=n).tolist() == [6, 6, 6]
        assert inspect(module.cut(x), gpus=1).tolist() == [1, 1]
        assert inspect(named(x), gpus=1).tolist() == [1, 1]
        # What was there before the edit is what it was.
        assert inspect(held[0]).tolist() == [2, 2, 2]
        assert inspect(copy.deepcopy(held[1])).tolist() == [1]


STEPS = """
import monarch


def rows(x):
    return x[:1].clone()


cut = monarch.remote(rows, propagate=rows)


def step(x):
    return cut(x) * 2


replayed = monarch.compile(step)
"""


@pytest.mark.long
def test_a_reload_has_compiled_functions_recorded_anew(procs: ProcMesh, project: Project) -> None:
    project.write("edited_steps.py", STEPS)
    assert project.sync(procs).ok
    module = project.load("edited_steps")
    with procs.activate():
        x = torch.ones(3)
        assert [inspect(module.replayed(x)).tolist() for _ in range(3)] == [[2]] * 3
    for old, new, found in (("x[:1]", "x[:2]", [2, 2]), ("* 2", "* 7", [7, 7])):
        project.edit("edited_steps.py", old, new)
        assert project.sync(procs).ok
        with procs.activate():
            assert [inspect(module.replayed(x)).tolist() for _ in range(3)] == [found] * 3


# Last: from here on the main stream has a thread of its own


def test_groups(mesh: Any) -> None:
    other = Stream("other")
    x = torch.ones(1)
    with other.activate():
        y = torch.ones(1) * 2
    found = []
    for _ in range(5):
        found.append(x.reduce("gpus"))
        with other.activate():
            found.append(y.reduce("gpus"))
    for n, one in enumerate(found):
        with one.stream.activate():
            assert inspect(one).item() == (4 if n % 2 else 2)


STREAMED = """
import sys
import time


def waits(x):
    # Until the worker waits for its streams, as it does at a reload.
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline and not any(map(is_at_rest, sys._current_frames().values())):
        time.sleep(0.02)
    return x + 1


def is_at_rest(frame):
    while frame is not None and frame.f_code.co_name != "come_to_rest":
        frame = frame.f_back
    return frame is not None


def grown(x):
    return x + 10
"""


def test_a_reload_waits_for_what_is_queued_in_streams(procs: ProcMesh, project: Project) -> None:
    project.write("streamed_functions.py", STREAMED)
    assert project.sync(procs).ok
    waits = remote("streamed_functions.waits", propagate=lambda x: x.clone())
    grow = remote("streamed_functions.grown", propagate=lambda x: x.clone())
    other = Stream("behind")
    with procs.activate():
        assert inspect(grow(torch.ones(1)), gpus=1).tolist() == [11]  # They have imported it.
    with procs.activate(), other.activate():
        y = grow(waits(torch.ones(2)))  # Issued before the edit.
    procs._device_mesh.client.flush()
    project.edit("streamed_functions.py", "x + 10", "x + 50")
    assert project.sync(procs).ok
    with procs.activate(), other.activate():
        assert [inspect(y, gpus=n).tolist() for n in range(2)] == [[12, 12]] * 2
        assert inspect(grow(y)).tolist() == [62, 62]


def test_a_breakpoint_in_one_of_several_streams(mesh: Any) -> None:
    def look(x: Any, rank: Any) -> Any:
        scale = 10
        if int(rank) == 1:
            breakpoint()
        return x * scale

    looks = remote(look, propagate=lambda x, rank: x.clone())
    other = Stream("other")
    for stream in (other, MAIN):
        with stream.activate():
            y = looks(torch.ones(2), mesh.rank("gpus"))
        mesh.client.flush()
        (hold,) = wait_for_holds(1)
        assert (hold.actor, hold.rank, hold.function[-4:]) == ("tensor_worker", 1, "look")
        shown = console("attach tensor_worker 1", "p x.tolist()", "scale = 30", "c")
        assert "(Pdb) p x.tolist()\n[1.0, 1.0]\n" in shown
        with stream.activate():
            assert [inspect(y, gpus=n).tolist() for n in range(2)] == [[10, 10], [30, 30]]
        wait_for_holds(0)
