"""Gives live functions new code. This module only yields flips and changes nothing itself."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from monarch_reload.kinds import is_a, own_names
from monarch_reload.live.settle import rehome
from monarch_reload.source.codes import moved_code
from monarch_reload.undo_log import MISSING, Attribute, Cell, Flip, contents_of

_CARRIED = (
    "__defaults__",
    "__kwdefaults__",
    "__annotations__",
    "__doc__",
    "__name__",
    "__qualname__",
    "__module__",
)


def parts_of(value: Any, module: str, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the value, and the functions, classes and wrappers inside it that belong to `module`.

    Follows everything that wraps functions: descriptors, closures, `functools`, dispatch tables.
    """
    seen = set() if seen is None else seen
    kind = type(value)  # not isinstance: lazy objects wake up when asked for their __class__
    if id(value) in seen or issubclass(kind, (ModuleType, str, int, float, type(None))):
        return
    seen.add(id(value))
    if issubclass(kind, type):
        if value.__module__ != module:
            return
        yield value
        inside = list(value.__dict__.values())
    elif (
        callable(value)
        or issubclass(kind, _DESCRIPTORS)
        or type(own_names(value).get("__wrapped__")) is FunctionType
    ):
        yield value
        inside = [] if is_compiled(value) else list(_inside(value))
    elif issubclass(kind, dict) and dict.__len__(value) < 1000:
        inside = list(dict.values(value))  # its class may have a `values` that loads something
    elif issubclass(kind, types.MappingProxyType) and len(value) < 1000:
        inside = list(value.values())
    else:
        return
    for part in inside:
        yield from parts_of(part, module, seen)


def is_compiled(value: Any) -> bool:
    """Return whether a compiler, such as torch's, made the object. Such an object runs a copy of
    the code from the time when it was compiled.
    """
    return type(value).__module__.startswith(_COMPILERS)


_DESCRIPTORS = (
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    functools.partialmethod,
    functools.singledispatchmethod,
)
# Objects that they make of a function do not run its code object: they have to be made again.
_COMPILERS = ("torch.jit", "torch._C", "numba", "triton", "jax")
_WITH_FUNC = (functools.partial, functools.partialmethod, functools.cached_property)


def _inside(value: Any) -> Iterator[Any]:
    if is_a(value, FunctionType):
        for cell in value.__closure__ or ():
            contents = contents_of(cell)
            if callable(contents) or is_a(contents, (dict, *_DESCRIPTORS)):
                yield contents
        yield value.__dict__.get("__wrapped__")
    elif is_a(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif is_a(value, (classmethod, staticmethod, types.MethodType)):
        yield value.__func__
    elif is_a(value, _WITH_FUNC):
        yield value.func
    elif is_a(value, functools.singledispatchmethod):
        yield from (value.dispatcher, value.func)
    else:
        yield from wrapped_in(value)


def wrapped_in(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in the attributes of ``value``, an object that a decorator has made, such
    as a cached function.
    """
    held: list[Any] = []
    with contextlib.suppress(AttributeError):
        held.append(object.__getattribute__(value, "__wrapped__"))  # may be a slot
    attributes = own_names(value)
    held += attributes.values() if len(attributes) < 50 else ()
    yield from (part for part in held if is_a(part, FunctionType))


def wraps(value: Any, qualname: str) -> bool:
    """Return whether the value is a function with the qualified name ``qualname``, or was made from
    such a function by decorators.
    """
    parts = parts_of(value, getattr(value, "__module__", None) or "")
    return any(is_a(part, FunctionType) and part.__qualname__ == qualname for part in parts)


def same_behaviour(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects are equal except for their position in the file."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and arguments_of(one) == arguments_of(other)
        and getattr(one, "co_exceptiontable", None) == getattr(other, "co_exceptiontable", None)
        and one.co_freevars == other.co_freevars
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def arguments_of(code: CodeType) -> tuple[int, ...]:
    """Return which kinds of arguments a function takes, and how many of each."""
    kinds = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, kinds


def likeness(code: CodeType) -> Hashable:
    """Return a key for comparisons. It is equal for two code objects with the same behaviour, and
    seldom equal for others. Code objects inside a code object do not affect its key.
    """
    plain = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, tuple(plain)


def _same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return same_behaviour(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


class FunctionPatch:
    """Collects the changes that give live functions new code. ``twins`` has the (staged, live) pair
    of each new object that a live object continues.
    """

    def __init__(self, namespaces: Mapping[str, dict[str, Any]] | None = None) -> None:
        """``namespaces`` are the globals of each staged module, by module name.

        With them, a new function is noticed whose globals are no module's, because ``exec`` made it
        in a namespace of its own. None: such functions are not noticed.
        """
        self._namespaces = namespaces
        self.twins: dict[int, tuple[Any, Any]] = {}  # id(staged) -> (staged, live)
        self.flips: list[Flip] = []
        self.patched: list[FunctionType] = []

    def pair(self, staged: Any, live: Any) -> None:
        self.twins[id(staged)] = (staged, live)

    def let_go(self) -> None:
        """Drop all references to objects of the trial."""
        self.twins.clear()
        self.flips.clear()

    def live_of(self, value: Any) -> Any:
        return self.twins[id(value)][1] if id(value) in self.twins else value

    def function(self, live: FunctionType, staged: FunctionType) -> FunctionType:
        """Return the function to bind: the live function, which gets the new code, or the staged
        function.

        The staged function is returned if the two have different closure variables, because the
        live function cannot take the new code then.
        """
        if live is staged or id(staged) in self.twins:
            return self.live_of(staged)  # type: ignore[no-any-return]
        old, new = live.__code__, staged.__code__
        if old.co_freevars != new.co_freevars:
            self.forward(live, staged)
            return staged
        self.pair(staged, live)
        if not same_behaviour(old, new):
            self.patched.append(live)
        if old is not new:
            self.flips.append(Attribute(live, "__code__", new))
        home = self._home_of(live, staged)
        if home is not None:
            self.flips.append(Home(live, home))
        for name in _CARRIED:
            value = getattr(staged, name)
            if getattr(live, name) is not value:
                self.flips.append(Attribute(live, name, value))
        for freevar, cell, fresh in zip(
            new.co_freevars, live.__closure__ or (), staged.__closure__ or (), strict=True
        ):
            if freevar != "__class__":
                self._cell(live, cell, fresh)
        self._attributes(live, staged)
        return live

    def _home_of(self, live: FunctionType, staged: FunctionType) -> dict[str, Any] | None:
        """Return the namespace that becomes the globals of a live function; None if the function
        keeps its present globals."""
        namespace = staged.__globals__
        name: str = namespace.get("__name__", "")
        if self._namespaces is not None and not any(
            namespace is candidate
            for candidate in (self._namespaces.get(name), own_names(sys.modules.get(name)))
        ):
            # `exec` made it in a namespace of its own, with the values that it was made with.
            return None if namespace is live.__globals__ else namespace
        if name in sys.modules and name != live.__globals__.get("__name__"):
            return vars(sys.modules[name])
        return None

    def _cell(self, live: FunctionType, cell: CellType, fresh: CellType) -> None:
        before, after = contents_of(cell), contents_of(fresh)
        if before is after or after is MISSING:
            return
        after = self._heir(before, after)
        if after is not before:
            self.flips.append(Cell(cell, after, live))

    def _attributes(self, live: FunctionType, staged: FunctionType) -> None:
        for name, value in staged.__dict__.items():
            before = live.__dict__.get(name, MISSING)
            value = self._heir(before, value)
            if value is not before:
                self.flips.append(Attribute(live, name, value))

    def _heir(self, live: Any, staged: Any) -> Any:
        """Return the object that a live function refers to from now on in place of ``live``.

        That is the live function that continues ``staged``, which gets its new code here; or the
        live object recorded for ``staged``; or ``staged`` itself. Classes are patched elsewhere.
        """
        if is_a(staged, FunctionType) and made_alike(live, staged):
            return self.function(live, staged)
        return self.live_of(staged)

    def forward(self, live: FunctionType, staged: Callable[..., Any]) -> None:
        """Have the old function call the new function, for objects that still refer to the old
        function.

        This is needed if the two have different closure variables, as when a method starts to use
        ``super()``: Python does not let the old function take the new code then.
        """
        self.patched.append(live)
        self.flips += [
            Attribute(live, "__code__", _forwarding_code(live.__code__, staged)),
            Attribute(live, "__defaults__", None),
            Attribute(live, "__kwdefaults__", None),
            Attribute(live, "__wrapped__", staged),
            Attribute(live, "__doc__", staged.__doc__),
        ]


def made_alike(live: Any, staged: Any) -> bool:
    """Return whether two functions or classes have the same module and qualified name. Then they
    are the old and the new version of one definition.
    """
    return _have_one_name(live, staged) and bool(live.__module__ == staged.__module__)


def moved_alike(live: Any, staged: Any) -> bool:
    """Return whether two functions or classes have the same qualified name in different modules."""
    return _have_one_name(live, staged) and bool(live.__module__ != staged.__module__)


def _have_one_name(live: Any, staged: Any) -> bool:
    is_one_kind = any(is_a(live, kind) and is_a(staged, kind) for kind in (FunctionType, type))
    return is_one_kind and bool(live.__qualname__ == staged.__qualname__)


@dataclass(frozen=True, eq=False)
class Home:
    """A change that gives a function another namespace for its globals."""

    function: FunctionType
    namespace: dict[str, Any]

    def apply(self) -> Callable[[], None]:
        before = self.function.__globals__
        rehome(self.function, self.namespace)
        return lambda: rehome(self.function, before)


_TARGET = "<the function that replaced this one>"
_BODIES = {
    "function": "def forward(*args, **kwargs):"
    " {reads}; target = {target!r}; return target(*args, **kwargs)",
    "coroutine": "async def forward(*args, **kwargs):"
    " {reads}; target = {target!r}; return await target(*args, **kwargs)",
    "generator": "def forward(*args, **kwargs):"
    " {reads}; target = {target!r}; return (yield from target(*args, **kwargs))",
    "async generator": "async def forward(*args, **kwargs):\n"
    "  {reads}; target = {target!r}\n  async for item in target(*args, **kwargs): yield item",
}


def _forwarding_code(old: CodeType, target: Callable[..., Any]) -> CodeType:
    """Return code that calls ``target``, for a function that runs the old code."""
    if inspect.isasyncgenfunction(target):
        kind = "async generator"
    elif inspect.iscoroutinefunction(target):
        kind = "coroutine"
    else:
        kind = "generator" if inspect.isgeneratorfunction(target) else "function"
    # The lambda never runs: names must be read somewhere to be free variables of the code.
    reads = f"lambda: ({''.join(f'{name}, ' for name in old.co_freevars)})"
    values = "".join(f"{name} = None; " for name in old.co_freevars)
    body = _BODIES[kind].format(reads=reads, target=_TARGET)
    source = f"def outer():\n {values}\n {body}"
    code = _nested(compile(source, old.co_filename, "exec", dont_inherit=True), "outer")
    code = _nested(code, "forward")
    # With the code inside it, since later edits may move both up.
    code = moved_code(code, old.co_firstlineno - code.co_firstlineno)
    constants = tuple(target if constant == _TARGET else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=old.co_name)


def _nested(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
