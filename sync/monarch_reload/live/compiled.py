"""Finds the graphs of torch.compile that an edit makes stale.

Dynamo keeps graphs by the code object of the function in which they begin. It guards the code of
functions that it finds by names of modules, but not the methods that it has inlined, nor the class
that they come from. So each compilation is noted here with all code objects that it went through,
and a push drops exactly the graphs that it makes stale. They are compiled again at the next call. A
graph whose guards would notice is dropped as well: it would count against the number of graphs that
dynamo keeps of a function before it gives up on it.

Code that only moved to other lines is moved in place, as the same object, so its graphs stay.

This module imports nothing of torch. Notes begin when the program imports dynamo. What a graph went
through that was compiled before is unknown, so any edit makes it stale.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from monarch_reload.live.line_shift import LineShift, lines_moved
from monarch_reload.live.patch import Home
from monarch_reload.source.codes import inner_codes, qualname_of
from monarch_reload.undo_log import MISSING, Attribute, Cell, Flip, Item, contents_of

CONVERT_FRAME = "torch._dynamo.convert_frame"  # the module of dynamo that compiles
_MOST_INVALID = 4  # graphs of one function that are gone and still count, before all are forgotten
_RESUMED = "torch_dynamo_resume_in_"
_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")


@dataclass(frozen=True, eq=False)
class Compilation:
    """One compilation by dynamo: ``code`` is the code that it began with, ``made`` the code that
    runs in its place.

    ``traced`` is all code that it went through, without torch's own. ``is_opaque``: it calls
    functions that dynamo did not look into.
    """

    code: weakref.ref[CodeType]
    made: weakref.ref[CodeType]
    traced: tuple[CodeType, ...]
    is_opaque: bool


@dataclass
class CodeChanges:
    """What one commit changes that compiled code may depend on. ``codes`` are the changed code
    objects, old and new, by id; ``names`` are names of functions in classes and of values in
    modules.
    """

    codes: dict[int, CodeType] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.codes or self.names)

    def note_code(self, *codes: CodeType) -> None:
        self.codes.update((id(code), code) for code in codes)

    def make_stale(self, compilation: Compilation) -> bool:
        return compilation.is_opaque or any(
            id(code) in self.codes or not self.names.isdisjoint((code.co_name, *code.co_names))
            for code in compilation.traced
        )


class CompiledCode:
    """Records the graphs that dynamo has compiled in this process, and the code that each one has
    traced."""

    def __init__(self) -> None:
        self._made: dict[int, Compilation] = {}
        self._is_watching = False

    def watch(self) -> None:
        """Record dynamo's compilations from now on. Nothing is done if the program has not imported
        dynamo.
        """
        convert_frame = sys.modules.get(CONVERT_FRAME)
        register = getattr(convert_frame, "register_bytecode_hook", None)
        if register is not None and not self._is_watching:
            register(self._note)
            self._is_watching = True

    def _note(self, code: CodeType, output: CodeType) -> None:
        """Record that dynamo compiled ``code`` into ``output``, and which code it traced."""
        graph = _output_graph(sys._getframe(1))
        traced = getattr(graph, "traced_code", None)
        if traced is None:
            return  # another version of torch, which does not record the traced code
        number, notes = id(output), self._made
        codes = {
            id(traced_code): traced_code
            for traced_code in (code, *traced)
            if not traced_code.co_filename.startswith(_torch())
        }
        self._made[number] = Compilation(
            code=weakref.ref(code),
            made=weakref.ref(output, lambda _: notes.pop(number, None)),
            traced=tuple(codes.values()),
            is_opaque=_is_opaque(graph),
        )

    def following(
        self, flips: Iterable[Flip], changes: CodeChanges, before_shift: Callable[[], None]
    ) -> Iterator[Flip]:
        """Yield ``flips`` for the commit, and record in ``changes`` what they change.

        If a change only moves compiled code to other lines, a change of line numbers is yielded
        instead, and the code stays the same object. ``before_shift`` is called before the first of
        these.
        """
        self.watch()
        compiled = {id(code) for code in _codes_seen() if _entries(code)}
        if not compiled:
            yield from flips
            return
        compilations = self._made.copy().values()
        compiled |= {id(code) for compilation in compilations for code in compilation.traced}
        has_shifted = False
        for flip in flips:
            shift = _shift_of(flip, compiled)
            if shift is None:
                _note_change(flip, changes)
                yield flip
                continue
            if not has_shifted:
                before_shift()
                has_shifted = True
            yield shift

    def forget(self, changes: CodeChanges) -> list[CodeType]:
        """Have dynamo drop the graphs that are stale after ``changes``. Return the code of the
        functions that dynamo will compile again.
        """
        convert_frame = sys.modules.get(CONVERT_FRAME)
        if convert_frame is None or not changes:
            return []
        frames: list[CodeType] = []
        # A graph that another thread is compiling may be stale already: wait until it is done.
        with getattr(convert_frame, "compile_lock", contextlib.nullcontext()):
            for code in _codes_seen():
                entries = _entries(code)
                stale = [entry for entry in entries if self._is_stale(entry, changes)]
                if stale:
                    frames.append(code)
                    _drop(code, stale, entries)
        return frames

    def _is_stale(self, entry: Any, changes: CodeChanges) -> bool:
        compilation = self._made.get(id(entry.code))
        if compilation is None or compilation.made() is not entry.code:
            return not _is_invalid(entry)
        return changes.make_stale(compilation)


def forget_scripts() -> None:
    """Make `torch.jit.script` compile again: its cache is by function or class, which stay the same
    objects after an edit."""
    state: Any = sys.modules.get("torch.jit._state")
    recursive: Any = sys.modules.get("torch.jit._recursive")
    if state is None or recursive is None or not state._python_cu.get_functions():
        return
    state._jit_caching_layer.clear()
    state._jit_function_overload_caching.clear()
    state._clear_class_state()
    recursive.concrete_type_store = recursive.ConcreteTypeStore()


def name_in(code: CodeType) -> str:
    """Return the qualified name of a function; for a part of a function that dynamo resumes, the
    name of the whole function."""
    name = qualname_of(code)
    if _RESUMED in name:
        outer, _, resumed = name.rpartition(_RESUMED)
        name = outer + resumed.rpartition("_at_")[0]
    return name


def _shift_of(flip: Flip, compiled: Collection[int]) -> LineShift | None:
    """Return a `LineShift` to make in place of ``flip``; None if ``flip`` must be made as it is.

    It replaces a change of a function's code if compiled code depends on that code, and only line
    numbers change. ``compiled`` are the ids of code objects that compiled code depends on.
    """
    if not (isinstance(flip, Attribute) and flip.name == "__code__"):
        return None
    old = flip.owner.__code__
    if not any(id(inner) in compiled for inner in (old, *inner_codes(old))):
        return None
    distance = lines_moved(old, flip.value)
    return None if distance is None else LineShift(old, distance)


def _note_change(flip: Flip, changes: CodeChanges) -> None:
    if isinstance(flip, Home):
        # Code that dynamo made of it looks its graphs up in the old namespace.
        changes.note_code(flip.function.__code__)
    elif isinstance(flip, Cell):
        if flip.function is not None and contents_of(flip.cell) is not flip.value:
            changes.note_code(flip.function.__code__)
    elif isinstance(flip, Item):
        if _is_of_module(flip.mapping) and flip.mapping.get(flip.key, MISSING) is not flip.value:
            changes.names.add(str(flip.key))
    elif isinstance(flip, Attribute):
        owner, name = flip.owner, flip.name
        if type(owner) is FunctionType:
            if name == "__code__":
                changes.note_code(owner.__code__, flip.value)
            elif name in _OF_FUNCTIONS:
                changes.note_code(owner.__code__)
        elif isinstance(owner, type):
            before = vars(owner).get(name, MISSING)
            if before is not flip.value and (_acts(before) or _acts(flip.value)):
                changes.names.add(name)
        elif type(owner) is ModuleType:
            changes.names.add(name)


def _acts(value: Any) -> bool:
    """Return whether a class attribute is a function or a descriptor. Changes of other attributes
    need no attention here, because dynamo's guards check them.
    """
    return value is not MISSING and (callable(value) or hasattr(type(value), "__get__"))


def _is_of_module(mapping: Any) -> bool:
    module = sys.modules.get(str(mapping.get("__name__"))) if type(mapping) is dict else None
    return module is not None and getattr(module, "__dict__", None) is mapping


# Private parts of dynamo, each of which tests/test_private_doors.py checks.


def _eval_frame() -> Any:
    return sys.modules.get("torch._C._dynamo.eval_frame")


def _codes_seen() -> list[CodeType]:
    """Return the live functions that dynamo was ever called for."""
    tracker = getattr(sys.modules.get(CONVERT_FRAME), "input_codes", None)
    seen = [ref() for ref in list(getattr(tracker, "seen", ()))]
    return [code for code in seen if code is not None]


def _entries(code: CodeType) -> list[Any]:
    """Return the compiled graphs that dynamo keeps for a function's code. The list must not be used
    any more after one of them was dropped.
    """
    return list(_eval_frame()._debug_get_cache_entry_list(code))


def _is_invalid(entry: Any) -> bool:
    return type(entry.guard_manager).__name__ == "DeletedGuardManagerWrapper"


def _drop(code: CodeType, stale: Collection[Any], entries: Collection[Any]) -> None:
    """Drop the ``stale`` graphs of a function; ``entries`` are all of its graphs. All are dropped
    at once if all are stale, if torch cannot drop single graphs, or if too many dropped graphs have
    gathered.
    """
    guards = sys.modules.get("torch._dynamo.guards")
    deleted = getattr(guards, "DeletedGuardManagerWrapper", None)
    gone = sum(map(_is_invalid, entries))
    managers = [entry.guard_manager for entry in stale]
    are_apart = deleted is not None and all(getattr(m, "extra_state", None) for m in managers)
    if len(stale) + gone == len(entries) or len(stale) + gone > _MOST_INVALID or not are_apart:
        _eval_frame().reset_code(code)
        return
    for entry, manager in zip(stale, managers, strict=True):
        manager.extra_state.invalidate(entry, deleted("its code was edited"))  # type: ignore[misc]


def _output_graph(frame: Any) -> Any:
    """Return dynamo's record of the code that a compilation went through; None if there is none.
    ``frame`` is the frame of the compilation, which is about to end.
    """
    while frame is not None and frame.f_code.co_filename.endswith("convert_frame.py"):
        for name in ("tracer_output", "output"):
            value = frame.f_locals.get(name)
            graph = getattr(value, "output_graph", value)
            if getattr(graph, "traced_code", None) is not None:
                return graph
        frame = frame.f_back
    return None


def _is_opaque(graph: Any) -> bool:
    """Return whether the graph calls functions that dynamo did not look into; a backend may have
    inlined them."""
    inner = [getattr(module, "graph", None) for module in getattr(graph, "nn_modules", {}).values()]
    for part in (getattr(graph, "graph", None), *inner):
        for node in getattr(part, "nodes", ()):
            value = node.meta.get("example_value")
            if type(value).__name__ == "_LeafCallable" or not _is_known(type(value)):
                return True
            if node.op == "call_function" and not _is_known(node.target):
                return True
    return False


def _is_known(thing: Any) -> bool:
    """Return whether a function is part of a known library and not the user's own code.

    An operator that the user defines in Python is the user's own.
    """
    module = str(getattr(thing, "__module__", None) or "")
    if module.startswith("torch._ops."):
        library = sys.modules.get("torch._library.custom_ops")
        packet = getattr(thing, "_qualified_op_name", "") or getattr(thing, "_schema", thing)
        name = str(getattr(packet, "name", packet)).partition(".")[0]
        return name not in getattr(library, "OPDEFS", {})
    return module.partition(".")[0] in _KNOWN


_KNOWN = ("", "torch", "builtins", "operator", "_operator", "math", "itertools", "functools")


def _torch() -> str:
    path = getattr(sys.modules.get("torch"), "__file__", None) or os.sep * 2
    return os.path.dirname(path) + os.sep


COMPILED = CompiledCode()  # one for the process, as dynamo's hooks are
