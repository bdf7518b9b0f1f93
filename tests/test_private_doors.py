"""The private doors of Python, torch and others that the product goes through, each by name.

Where one moves with a new release, the test of its name says here what would have broken, in one
line, before a reload or a hold fails in a puzzling way. A door that is used, and not named, fails.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from ctypes import c_void_p
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from monarch_reload.live.compiled import COMPILED
from monarch_reload.live.line_shift import LineShift, lines_moved
from tests.syntax_tree import SyntaxTree, parse_all

ROOT = Path(__file__).parents[1]
OURS = ("monarch", "monarch_sync", "monarch_reload", "monarch_recipes")


class Door(NamedTuple):
    """Its name as the scan below finds it, what breaks without it, and whether it is there."""

    name: str
    breaks: str
    is_there: Callable[[], object]


def _named(module: str, *path: str) -> Callable[[], object]:
    def is_there() -> object:
        found: Any = importlib.import_module(module)
        for name in path:
            found = getattr(found, name)
        return callable(found) or found is not None

    return is_there


def _torch(look: Callable[[Any], object]) -> Callable[[], object]:
    return lambda: look(pytest.importorskip("torch"))


def _loops_say_what_is_ready() -> bool:
    async def look() -> bool:
        loop = asyncio.get_running_loop()
        is_idle = not loop._ready  # type: ignore[attr-defined]
        loop.call_soon(lambda: None)
        return is_idle and bool(loop._ready)  # type: ignore[attr-defined]

    return asyncio.run(look())


def _running_loop_is_settable() -> bool:
    async def look() -> bool:
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return loop is not None and asyncio._get_running_loop() is None
        finally:
            asyncio._set_running_loop(loop)

    return asyncio.run(look())


def _classes_are_tracked_by_number() -> bool:
    from cloudpickle import cloudpickle

    class Made:
        pass

    number = cloudpickle._get_or_create_tracker_id(Made)
    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        by_class, by_id = (
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS,
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID,
        )
        return by_class[Made] == number and by_id[number] is Made


def _code_is_reduced_by_its_arguments() -> bool:
    import cloudpickle

    code = compile("x = 1", "some_file.py", "exec")
    made_by, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return made_by is CodeType and arguments[10] in (code.co_filename, "<dynamic-code>")


def _a_spec_says_that_it_is_imported() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "half_way.py").write_text("SEEN = __spec__._initializing\n")
        sys.path.insert(0, folder)
        try:
            module = importlib.import_module("half_way")
        finally:
            sys.path.remove(folder)
            sys.modules.pop("half_way", None)
    return module.SEEN is True and not getattr(module.__spec__, "_initializing", False)


def _module_locks_are_by_name() -> bool:
    return isinstance(importlib._bootstrap._module_locks, dict)  # type: ignore[attr-defined]


def _dynamo_tells_what_it_went_through(torch: Any) -> bool:
    def inner(x: Any) -> Any:
        return x + 1

    def outer(x: Any) -> Any:
        return inner(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        compiled = torch.compile(outer, backend="eager")
        importlib.import_module("torch._dynamo.convert_frame")
        COMPILED.watch()
        compiled(torch.ones(1))
    (entry,) = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(outer.__code__)
    manager = entry.guard_manager
    deleted = importlib.import_module("torch._dynamo.guards").DeletedGuardManagerWrapper
    is_known = inner.__code__ in COMPILED._made[id(entry.code)].traced
    manager.extra_state.invalidate(entry, deleted("its code was edited"))
    return is_known


def _the_first_line_of_a_code_object_can_be_written() -> bool:
    code = compile("\n\ndef f():\n    def g(): pass\n", "some_file.py", "exec").co_consts[0]
    assert isinstance(code, CodeType)
    moved = code.replace(
        co_firstlineno=5,
        co_consts=tuple(
            one.replace(co_firstlineno=6) if isinstance(one, CodeType) else one
            for one in code.co_consts
        ),
    )
    distance = lines_moved(code, moved)
    undo = LineShift(code, distance or 0).apply()
    is_moved = distance == 2 and code == moved and [*code.co_lines()] == [*moved.co_lines()]
    undo()
    return is_moved and code.co_firstlineno == 3


def _signals_can_be_set_in_c() -> bool:
    import _signal  # type: ignore[import-not-found]

    return callable(_signal.signal) and callable(_signal.getsignal)


def _tuple_items_follow_the_header() -> bool:
    holder = (object(), object())
    slots = (c_void_p * 2).from_address(id(holder) + tuple.__basicsize__)
    return list(slots) == [id(one) for one in holder]


def _globals_follow_the_header_of_a_function() -> bool:
    function: Any = FunctionType((lambda: None).__code__, {"__builtins__": {}})
    slots = (c_void_p * 2).from_address(id(function) + object.__basicsize__)
    return list(slots) == [id(function.__globals__), id(function.__builtins__)]


def _an_exception_can_be_raised_in_a_thread() -> bool:
    import ctypes

    # Of a thread that is not there: none is disturbed.
    none = ctypes.c_ulong(2**40 + 7)
    return ctypes.pythonapi.PyThreadState_SetAsyncExc(none, ctypes.py_object(KeyError)) == 0


def _tensors_count_their_versions(torch: Any) -> bool:
    tensor = torch.zeros(2)
    before = tensor._version
    tensor.add_(1)
    return bool(tensor._version > before)


def _modules_keep_three_tables(torch: Any) -> bool:
    part = torch.nn.BatchNorm1d(2)
    return (
        {"weight"} < {*part._parameters}
        and {"running_mean"} < {*part._buffers}
        and part._modules == {}
    )


def _torchtitan_asks_torch_for_the_device() -> bool:
    torch = pytest.importorskip("torch")
    return callable(torch._utils._get_available_device_type) and callable(
        torch._utils._get_device_module
    )


def _operators_are_of_that_module(torch: Any) -> bool:
    made = torch.library.custom_op(
        "private_doors::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    return type(made).__module__ == "torch._library.custom_ops"


def _source_of(package: str, file: str) -> str:
    """Of a package that may not be importable here as it is."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    return next(one for one in files if str(one) == file).read_text()


def _managers_have_these() -> bool:
    source = _source_of("torchft", "torchft/manager.py")
    return all(f"self.{name}" in source for name in ("_manager", "_quorum_future"))


DOORS = [
    Door(
        "asyncio._get_running_loop",
        "`get()` within a loop is not refused by name",
        _running_loop_is_settable,
    ),
    Door(
        "asyncio.BaseEventLoop._ready",
        "`await` of a call sleeps at once, and takes twice as long",
        _loops_say_what_is_ready,
    ),
    Door(
        "asyncio._set_running_loop",
        "`monarch.compat` runs no coroutine in a coroutine",
        _running_loop_is_settable,
    ),
    Door(
        "cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS",
        "`upgrade` of classes of scripts",
        _classes_are_tracked_by_number,
    ),
    Door(
        "cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID",
        "`upgrade` of classes of scripts",
        _classes_are_tracked_by_number,
    ),
    Door(
        "cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK",
        "`upgrade` of classes of scripts",
        _classes_are_tracked_by_number,
    ),
    Door(
        "cloudpickle._get_or_create_tracker_id",
        "`upgrade` of classes of scripts",
        _classes_are_tracked_by_number,
    ),
    Door(
        "cloudpickle._should_pickle_by_reference",
        "whether `upgrade` may send a class",
        _named("cloudpickle.cloudpickle", "_should_pickle_by_reference"),
    ),
    Door(
        "cloudpickle.Pickler.dispatch_table",
        "code that is sent whole has no file: no source in tracebacks and at breakpoints",
        _code_is_reduced_by_its_arguments,
    ),
    Door("_signal", "Ctrl-C is put off more slowly", _signals_can_be_set_in_c),
    Door(
        "sys._current_frames",
        "hangs are told without stacks",
        lambda: threading.get_ident() in sys._current_frames(),
    ),
    Door("sys._getframe", "who imports an address of Monarch's", lambda: sys._getframe(0)),
    Door(
        "spec._initializing",
        "modules that are being imported are taken for done",
        _a_spec_says_that_it_is_imported,
    ),
    Door(
        "importlib._bootstrap._module_locks",
        "a reload meets an import half way",
        _module_locks_are_by_name,
    ),
    Door(
        "items of a tuple", "reload exchanges no object in a tuple", _tuple_items_follow_the_header
    ),
    Door(
        "globals of a function",
        "reload rehomes no function",
        _globals_follow_the_header_of_a_function,
    ),
    Door(
        "PyThreadState_SetAsyncExc",
        "loops in edited code are not interrupted",
        _an_exception_can_be_raised_in_a_thread,
    ),
    Door(
        "torch._version",
        "a hold does not see that a large tensor has changed",
        _torch(_tensors_count_their_versions),
    ),
    Door(
        "torch.nn.Module._parameters",
        "a hold puts no module back",
        _torch(_modules_keep_three_tables),
    ),
    Door(
        "distributed.distributed_c10d._abort_process_group",
        "ranks that wait for one that raised are not brought back",
        _torch(lambda _: _named("torch.distributed.distributed_c10d", "_abort_process_group")()),
    ),
    Door(
        "torch.distributed.distributed_c10d._set_pg_timeout",
        "ranks that wait for one that is held in a debugger time out",
        _torch(lambda _: _named("torch.distributed.distributed_c10d", "_set_pg_timeout")()),
    ),
    Door(
        "distributed_c10d._world",
        "timeouts of process groups go on while a rank is held",
        _torch(lambda _: _named("torch.distributed.distributed_c10d", "_world", "pg_map")()),
    ),
    Door(
        "torch.utils._pytree",
        "batches that are nested",
        _torch(lambda _: _named("torch.utils._pytree", "tree_map_only")()),
    ),
    Door(
        "torch._dynamo.convert_frame",
        "each edit compiles all anew that uses a module of the workspace",
        _torch(_dynamo_tells_what_it_went_through),
    ),
    Door(
        "torch._dynamo",
        "replica groups are forked without dynamo, and import it each",
        _torch(lambda _: _named("torch._dynamo", "reset")()),
    ),
    Door(
        "torch._C._dynamo.eval_frame",
        "compiled graphs go on with old code",
        _torch(lambda _: _named("torch._C._dynamo.eval_frame", "reset_code")()),
    ),
    Door(
        "code.co_firstlineno",
        "compiled functions that only move are compiled again",
        _the_first_line_of_a_code_object_can_be_written,
    ),
    *(
        Door(name, "distributed tensors do not work", _torch(lambda _, where=where: where()))
        for name, where in {
            "torch._C": _named("torch._C", "_profiler", "gather_traceback"),
            "torch._C._disabled_torch_function_impl": _named(
                "torch._C", "_disabled_torch_function_impl"
            ),
            "torch.Tensor._make_wrapper_subclass": _named(
                "torch", "Tensor", "_make_wrapper_subclass"
            ),
            "torch._subclasses.fake_tensor": _named(
                "torch._subclasses.fake_tensor", "FakeTensorMode"
            ),
            "torch.ops.aten._local_scalar_dense": _named(
                "torch", "ops", "aten", "_local_scalar_dense", "default"
            ),
            "torch.utils._mode_utils": _named("torch.utils._mode_utils", "no_dispatch"),
            "torch.utils._python_dispatch": _named(
                "torch.utils._python_dispatch", "_disable_current_modes"
            ),
        }.items()
    ),
    Door(
        "torch._library.custom_ops",
        "an operator that is made anew frees the one that runs",
        _torch(_operators_are_of_that_module),
    ),
    Door(
        "torch.profiler._ExperimentalConfig",
        "`monarch trace --torch` lacks what ran on other threads",
        _torch(lambda _: _named("torch.profiler", "_ExperimentalConfig")()),
    ),
    Door("torch._utils", "titan does not run without a GPU", _torchtitan_asks_torch_for_the_device),
    Door(
        "torch.UntypedStorage._new_shared_cuda",
        "memory of a GPU goes through the host, within a machine too",
        _torch(lambda torch: torch.UntypedStorage._new_shared_cuda),
    ),
    Door(
        "torch.UntypedStorage._share_cuda_",
        "memory of a GPU goes through the host, within a machine too",
        _torch(lambda torch: torch.UntypedStorage._share_cuda_),
    ),
    Door(
        "atexit._run_exitfuncs",
        "a proc ends without the exit handlers of what it imported",
        _named("atexit", "_run_exitfuncs"),
    ),
    Door(
        "subprocess._args_from_interpreter_flags",
        "trial processes run with other flags",
        _named("subprocess", "_args_from_interpreter_flags"),
    ),
    Door(
        "torchtitan.components.metrics._get_metrics_rank",
        "which rank writes titan's metrics",
        lambda: (
            "def _get_metrics_rank(" in _source_of("torchtitan", "torchtitan/components/metrics.py")
        ),
    ),
    Door(
        "rules._should_pickle_by_reference",
        "classes of extensions that are not where they say cannot be sent",
        _named("cloudpickle.cloudpickle", "_should_pickle_by_reference"),
    ),
    Door(
        "rules._is_registered_pickle_by_value",
        "classes of modules that travel whole are sent by name",
        _named("cloudpickle.cloudpickle", "_is_registered_pickle_by_value"),
    ),
    Door(
        "torch.distributed.rendezvous._rendezvous_handlers",
        "ranks of one machine do not meet at a private file",
        _named("torch.distributed.rendezvous", "_rendezvous_handlers", "__getitem__"),
    ),
    Door(
        "torch.distributed.rendezvous._env_rendezvous_handler",
        "ranks that met at a file cannot meet at a store again",
        _named("torch.distributed.rendezvous", "_env_rendezvous_handler"),
    ),
    *(
        Door(
            f"torch.distributed.Reducer.{name}",
            "a forward that leaves parameters out lets ranks come apart",
            _named("torch.distributed", "Reducer", name),
        )
        for name in ("_autograd_hook", "_check_reducer_finalized", "_remove_autograd_hooks")
    ),
    *(
        Door(
            f"c10d.{name}",
            "process groups are not made anew in place",
            _named("torch.distributed.distributed_c10d", name),
        )
        for name in (
            "_world",
            "_get_default_group",
            "_update_default_pg",
            "_get_default_timeout",
            "_new_process_group_helper",
            "_unregister_all_process_groups",
        )
    ),
    Door(
        "torch.distributed._composable.replicate",
        "replicas of TorchTitan are not wrapped again when their group is made anew",
        _named("torch.distributed._composable.replicate", "replicate"),
    ),
    Door(
        "DistributedDataParallel._active_ddp_module",
        "a step that was cut short leaves its replica marked as the active one",
        _torch(lambda t: hasattr(t.nn.parallel.DistributedDataParallel, "_active_ddp_module")),
    ),
    Door("torchft.Manager", "groups outlive no lighthouse", _managers_have_these),
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_a_private_door_is_where_it_was(door: Door) -> None:
    assert door.is_there(), f"without {door.name}: {door.breaks}"


def test_no_private_door_of_a_module_is_used_without_being_named_here() -> None:
    named = {door.name for door in DOORS}
    used: dict[str, str] = {}
    tops = ("monarch", "sync", "recipes")
    paths = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    for path, tree in parse_all(zip(paths, paths, strict=True)).items():
        for door in _doors_in(tree):
            used.setdefault(door, str(path.relative_to(ROOT)))
    assert not {door: path for door, path in used.items() if door not in named}
    assert len(used) > 10  # The scan sees something.


def _doors_in(tree: SyntaxTree) -> Iterator[str]:
    """Private names of modules that are not ours, as they are spelled."""
    modules = set()
    for imported in tree.nodes(ast.Import):
        for one in imported.names:
            if _is_private(one.name.split(".")) and not one.name.startswith(OURS):
                yield one.name
            modules.add(one.asname or one.name.split(".")[0])
    for taken in tree.nodes(ast.ImportFrom):
        if not taken.level:
            home = taken.module or ""
            if home.startswith((*OURS, "__future__")):
                continue
            for one in taken.names:
                if _is_private(home.split(".")):
                    yield home
                elif _is_private([one.name]):
                    yield f"{home}.{one.name}"
                elif home.split(".")[0] in ("torch", "cloudpickle", "importlib", "asyncio"):
                    modules.add(one.asname or one.name)
    for node in tree.nodes(ast.Attribute):
        if _is_private([node.attr]):
            parts, of = [node.attr], node.value
            while isinstance(of, ast.Attribute):
                parts, of = [of.attr, *parts], of.value
            name = ".".join([of.id, *parts]) if isinstance(of, ast.Name) else ""
            if (
                name.split(".")[0] in modules and name != "os._exit"
            ):  # Documented, in spite of its name.
                yield name


def _is_private(parts: list[str]) -> bool:
    return any(one.startswith("_") and not one.startswith("__") for one in parts)
