"""Walks through all objects of a state, and records how to restore each of them.

It follows, to any depth and through circles: attributes (also in ``__slots__``), containers of the
standard library, tuples, weak references, bound methods, ``functools.partial``; and of the user's
functions and classes the attributes, closures and defaults. Each holder is restored entry by entry,
so that every object is the same one as before; no method of the user's is called. Objects of
libraries are not searched, except those for training: modules, optimizers, schedulers, and objects
with a ``state_dict``. An object with a ``state_dict`` that contains an iterator is asked for it, as
nothing else can rewind that.

``tensor_copies`` decides what is done with tensors and arrays.
"""

from __future__ import annotations

import array
import collections
import copy
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import itertools
import operator
import os
import pathlib
import random
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from monarch.version import OUR_FOLDER

Undo = Callable[[], object]

_ATOMS: frozenset[type] = frozenset({
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...),
    type(NotImplemented),
    types.BuiltinFunctionType, types.CodeType, types.ModuleType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.FrameType, types.TracebackType, property, super,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
    decimal.Decimal, fractions.Fraction, re.Pattern, re.Match, operator.attrgetter,
    operator.itemgetter, operator.methodcaller,
    pathlib.PurePath, pathlib.PurePosixPath, pathlib.PosixPath, pathlib.Path,
})  # fmt: skip
_ATOM_BASES = (BaseException, os.PathLike)
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_NO_HOOKS = [None for _ in _HOOKS]
# These can be copied at their position: the copy replaces the one that has advanced.
_COPYABLE: frozenset[type] = frozenset({
    itertools.count, itertools.repeat, type(iter([])), type(iter(())), type(iter(range(0))),
    type(iter(range(1 << 100))), type(iter("")), type(iter("\u0100")), type(iter(b"")),
    type(reversed([])), type(iter(bytearray())), type(iter(array.array("b"))),
})  # fmt: skip
_EMPTY_HOLDERS: frozenset[type] = frozenset({dict, list, set, collections.OrderedDict})
_OURS = frozenset({"monarch", "monarch_sync", "monarch_reload"})
_RECIPES = "monarch_recipes"  # their state is the run's, also where they are installed
_LIBRARIES = frozenset({"torch", "numpy", "torchvision"})
_TRAINING = ("torch.optim", "torch.amp", "torch.cuda.amp", "torch.distributed.pipelining")
_GONE: Any = object()
_attributes_of: Callable[[Any, str], Any] = object.__getattribute__


class Leaves(Protocol):
    """Handles the tensors, arrays, and objects with a ``state_dict`` that a walk meets."""

    def tensor(self, tensor: Any) -> Iterable[Any]:
        """Record a tensor; return its inner tensors if it must be followed itself."""

    def array(self, array: Any) -> None: ...

    def optimizer(self, optimizer: Any) -> None:
        """Record an optimizer, before the objects in it."""

    def told(self, value: Any) -> Undo: ...


class Walk:
    """A walk through a state, and the objects that it has found.

    ``most_looked_into`` is how many elements a container may have to be searched, and
    ``most_objects`` how many objects in all; ``None`` is no limit.
    """

    def __init__(
        self,
        leaves: Leaves,
        *,
        most_looked_into: int | None = None,
        most_objects: int | None = None,
    ) -> None:
        self._leaves = leaves
        self._most_looked_into = most_looked_into
        self._most_objects = most_objects
        self._todo: list[Any] = []
        # By id, with what holds it; the objects are in there, so that no other gets such an id.
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._names: dict[int, str] = {}  # of the roots
        self._handlers: dict[type, Callable[[Walk, Any], None]] = {}
        self._shapes: dict[type, tuple[tuple[Any, ...], bool]] = {}
        self._special = _COPYABLE | _wrappers()
        self._stand_ins: dict[int, _StandIn] = {}
        self._told: list[Undo] = []
        self._undos: list[Undo] = []
        self._empty: list[Any] = []
        self._dicts: list[tuple[Any, dict[Any, Any], bool]] = []
        self._lists: list[tuple[Any, list[Any], bool]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._members: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._kinds: list[tuple[Any, type, dict[str, Any] | None]] = []
        self._without_hooks: list[Any] = []
        self._shallow: list[tuple[str, Any]] = []
        self._unkept: list[str] = []

    def look_into(self, root: object, name: str) -> None:
        """Follow a root object; ``name`` is its name in messages."""
        self._names[id(root)] = name
        self._seen[id(root)] = (root, None)
        self._object(root)
        self._add((type(root),), root)

    def look_into_globals(self, module: types.ModuleType) -> None:
        """Follow the globals of a user's module, except imported ones."""
        namespace = vars(module)
        before = dict(namespace)
        self._namespaces.append((namespace, before))
        self._names[id(module)] = module.__name__
        self._seen[id(module)] = (module, None)
        self._add(before.values(), module)

    def finish(self) -> KeptHolders:
        """Follow all objects, and drop what is not needed to restore them."""
        handlers, most = self._handlers, self._most_objects
        for number, value in enumerate(self._todo):  # It grows meanwhile.
            if number == most:
                self._unkept.append(f"what is beyond {most:,} objects")
                break
            kind = type(value)
            handler = handlers.get(kind)
            if handler is None:
                handler = _known_handlers.get(kind)
                if handler is None:
                    handler = _known_handlers[kind] = _handler_of(kind)
                handlers[kind] = handler
                if handler in (_OBJECT, _TELLS):
                    self._add((kind,), None)
            handler(self, value)
        self._todo, self._seen = [], {}
        return KeptHolders(self)

    def _add(self, values: Iterable[Any], holder: Any) -> bool:
        """Queue values for the walk; return whether their holder must get a replacement for any of
        them.
        """
        seen, todo, special, is_special = self._seen, self._todo, self._special, False
        for value in values:
            kind = type(value)
            if kind in _ATOMS:
                continue
            if kind in _EMPTY_HOLDERS and not value:
                self._empty.append(value)
                continue
            if kind in special:
                is_special = True
                self._have_stood_in(value, holder)
                continue
            number = id(value)
            if number not in seen:
                seen[number] = (value, holder)
                todo.append(value)
        return is_special

    def _have_stood_in(self, value: Any, holder: Any) -> None:
        if id(value) in self._stand_ins:
            return
        if type(value) in _COPYABLE:
            self._stand_ins[id(value)] = _CopiedIterator(value)
            self._seen[id(value)] = (value, holder)
            return
        self._stand_ins[id(value)] = _Wrapper(value)
        self._names.setdefault(id(value.module), self._path(value, holder))
        self._add((value.module,), None)

    def _stood_in(self, value: Any) -> Any:
        return self._stand_ins.get(id(value), value)

    # One for each kind of object

    def _dict(self, value: Any) -> None:
        self._keep_dict(value, value)
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            self._undos.append(lambda: setattr(value, "default_factory", factory))
        if type(value) not in (dict, collections.OrderedDict, collections.defaultdict):
            self._object(value)

    def _keep_dict(self, entries: dict[Any, Any], holder: Any, *, has_names: bool = False) -> None:
        if not entries and type(entries) in _EMPTY_HOLDERS:
            self._empty.append(entries)
            return
        before, is_special = dict(_items(entries)), False
        if self._is_looked_into(before, holder):
            is_special = self._add(before.values(), holder)
            if not has_names:
                self._add(before, holder)
        if is_special:
            before = {key: self._stood_in(one) for key, one in before.items()}
        self._dicts.append((entries, before, is_special))

    def _list(self, value: Any) -> None:
        before, is_special = list(value), False
        if self._is_looked_into(before, value):
            is_special = self._add(before, value)
            if is_special:
                before = [self._stood_in(one) for one in before]
        self._lists.append((value, before, is_special))
        if type(value) not in (list, set, collections.deque):
            self._object(value)

    def _is_looked_into(self, container: Any, holder: Any) -> bool:
        most = self._most_looked_into
        if most is None or len(container) <= most:
            return True
        self._shallow.append((self._path(holder), container))
        return False

    def _elements(self, value: Any) -> None:
        if self._is_looked_into(value, value) and self._add(value, value):
            for one in value:
                if isinstance(stand_in := self._stand_ins.get(id(one)), _CopiedIterator):
                    self._say(self._path(one, value), stand_in.kept)
        if type(value) not in (tuple, frozenset):
            self._object(value)

    def _object(self, value: Any) -> None:
        attributes = _dict_of(value)
        if attributes is not None:
            self._keep_dict(attributes, value, has_names=True)
        kind = type(value)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = _slots_of(kind), hasattr(kind, "cls_to_become")
        slots, is_lazy = shape
        self._kinds.append((value, kind, attributes))
        for descriptor in slots:
            self._slot(value, descriptor)
        if is_lazy:  # It becomes another one.
            self._undos.append(lambda: _set_class(value, kind))

    def _slot(self, owner: Any, descriptor: Any) -> None:
        try:
            before = descriptor.__get__(owner)
        except AttributeError:
            before = _GONE
        if self._add((before,), owner):
            before = self._stood_in(before)

        def put_back() -> None:
            now = _resolved(before, _GONE)
            if now is not _GONE:
                descriptor.__set__(owner, now)
                return
            try:
                descriptor.__delete__(owner)
            except AttributeError:
                pass

        self._undos.append(put_back)

    def _optimizer(self, value: Any) -> None:
        self._leaves.optimizer(value)
        self._object(value)

    def _script_module(self, value: Any) -> None:
        """Follow a script module's tensors, which are all that Python can see of it."""
        self._add((*value.parameters(), *value.buffers()), value)

    def _tells(self, value: Any) -> None:
        """Compare an object by its attributes, which is exact; an object that advances by itself
        can only be restored by its owner.
        """
        attributes = _dict_of(value)
        has_entries = attributes is not None or _slots_of(type(value))
        if not has_entries or any(map(_is_moving, (attributes or {}).values())):
            self._told.append(self._leaves.told(value))
        else:
            self._object(value)

    def _tensor(self, value: Any) -> None:
        if inner := self._leaves.tensor(value):
            self._add(inner, value)
        attributes = _dict_of(value)
        if attributes:
            self._keep_dict(attributes, value, has_names=True)
        elif attributes is not None:
            self._empty.append(attributes)
        if value.is_leaf and value.requires_grad:
            self._hooks(value)

    def _hooks(self, parameter: Any) -> None:
        """Record a parameter's hooks, which run in each backward pass."""
        before = [getattr(parameter, name, None) for name in _HOOKS]
        if before == _NO_HOOKS:
            self._without_hooks.append(parameter)
            return
        for name, hooks in zip(_HOOKS, before, strict=True):
            if hooks is not None:
                self._keep_dict(hooks, parameter)
            self._undos.append(functools.partial(_set_hooks, parameter, name, hooks))

    def _member(self, value: Any) -> None:
        """Record the attributes of an enum member. The member belongs to its class, because new
        code makes new members.
        """
        if not is_library(type(value).__module__):
            attributes = _dict_of(value)
            self._members.append((attributes, dict(attributes)))
            self._add(attributes.values(), value)

    def _array(self, value: Any) -> None:
        if value.dtype.hasobject:
            self._add(value.flat, value)
        self._leaves.array(value)
        if not value.flags.owndata:
            self._add((value.base,), value)
        self._object(value)

    def _bytes(self, value: Any) -> None:
        before = value[:]
        self._undos.append(lambda: operator.setitem(value, slice(None), before))

    def _drawn(self, value: Any) -> None:
        state = value.getstate()
        self._undos.append(lambda: value.setstate(state))
        self._object(value)

    def _torch_generator(self, value: Any) -> None:
        state = value.get_state()
        self._undos.append(lambda: value.set_state(state))

    def _numpy_generator(self, value: Any) -> None:
        self._add((value.bit_generator,), value)

    def _bits(self, value: Any) -> None:
        state = copy.deepcopy(value.state)
        self._undos.append(lambda: setattr(value, "state", state))

    def _numpy_draws(self, value: Any) -> None:
        state = value.get_state()
        self._undos.append(lambda: value.set_state(state))

    def _memory_file(self, value: Any) -> None:
        if value.closed:
            return
        state = value.__getstate__()
        self._undos.append(lambda: value.__setstate__(state))

    def _method(self, value: Any) -> None:
        self._add((value.__self__, value.__func__), value)

    def _partial(self, value: Any) -> None:
        self._add((value.func, value.args, value.keywords), value)
        self._object(value)

    def _wrapped(self, value: Any) -> None:
        self._add((value.__func__,), value)

    def _function(self, value: Any) -> None:
        if is_library(value.__module__):
            return
        self._keep_dict(value.__dict__, value, has_names=True)
        self._add((*(value.__defaults__ or ()), value.__kwdefaults__), value)
        for cell in value.__closure__ or ():
            if id(cell) not in self._seen:
                self._seen[id(cell)] = (cell, value)
                self._cell(cell)

    def _cell(self, cell: Any) -> None:
        try:
            before = cell.cell_contents
        except ValueError:
            before = _GONE
        if self._add((before,), cell):
            before = self._stood_in(before)

        def put_back() -> None:
            now = _resolved(before, _GONE)
            if now is not _GONE:
                cell.cell_contents = now
            else:
                try:
                    del cell.cell_contents
                except ValueError:
                    pass

        self._undos.append(put_back)

    def _class(self, value: type) -> None:
        if is_library(value.__module__) or issubclass(value, _ATOM_BASES):
            return
        if issubclass(value, enum.Enum):
            self._add(value.__members__.values(), value)
            return
        before = {name: one for name, one in vars(value).items() if not name.startswith("__")}
        self._classes.append((value, before))
        self._add(before.values(), value)
        self._add(value.__mro__[1:], value)

    def _weak(self, value: Any) -> None:
        self._add((value(),), value)

    def _weak_dict(self, value: Any) -> None:
        before = dict(value.items())
        self._add(before, value)
        self._add(before.values(), value)

        def put_back() -> None:
            value.clear()
            value.update(before)

        self._undos.append(put_back)

    def _weak_set(self, value: Any) -> None:
        before = list(value)
        self._add(before, value)

        def put_back() -> None:
            value.clear()
            value.update(before)

        self._undos.append(put_back)

    def _proxy(self, value: Any) -> None:
        self._add(gc.get_referents(value), value)

    def _moving(self, value: Any) -> None:
        self._say(self._path(value), value)

    def _nothing(self, value: Any) -> None:
        pass

    # Names

    def _say(self, path: str, value: Any) -> None:
        self._unkept.append(f"{path} (a {type(value).__name__})")

    def _path(self, value: Any, holder: Any = None) -> str:
        """Return where a value is, as a person would write it: ``self.rows[0]``."""
        parts: list[str] = []
        while True:
            name = self._names.get(id(value))
            if name is None and isinstance(value, (type, types.FunctionType)):
                name = value.__qualname__
            if name is not None:
                return name + "".join(reversed(parts))
            if holder is None:
                holder = self._seen.get(id(value), (None, None))[1]
            if holder is None:
                return (type(value).__name__ + "".join(reversed(parts))).lstrip(".")
            parts.append(_place_in(holder, value))
            value, holder = holder, None


class KeptHolders:
    """Restores the objects that a walk has found, each time it is called.

    It returns descriptions of those that it could not restore.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def __call__(self, *, is_same_code: bool = True) -> list[str]:
        """Restore; if ``is_same_code`` is false, names of modules and classes keep their current
        values."""
        walk = self._walk
        for undo in walk._told:
            undo()
        for stand_in in walk._stand_ins.values():
            stand_in.renew()
        for parameter in walk._without_hooks:
            for name in _HOOKS:
                _set_hooks(parameter, name, None)
        for empty in walk._empty:
            if empty:
                empty.clear()
        for entries, before, is_special in walk._dicts:
            _refill_dict(entries, before, is_special)
        for holder, elements, is_special in walk._lists:
            _refill_list(holder, elements, is_special)
        for undo in walk._undos:
            undo()
        if is_same_code:
            for namespace, before in walk._namespaces:
                _refill_namespace(
                    namespace.get, namespace, before, namespace.__setitem__, namespace.pop
                )
            for cls, before in walk._classes:
                _refill_class(cls, before)
            for entries, before in walk._members:
                _refill_dict(entries, before, False)
            for value, kind, attributes in walk._kinds:
                _set_class(value, kind)
                if attributes is not None and _dict_of(value) is not attributes:
                    object.__setattr__(value, "__dict__", attributes)
        deep = [path for path, container in walk._shallow if not _is_of_values(container)]
        return [*walk._unkept, *(f"the elements of {path}" for path in deep)]


def _refill_dict(entries: Any, before: dict[Any, Any], is_special: bool) -> None:
    if is_special:
        before = {
            key: found
            for key, one in before.items()
            if (found := _resolved(one, entries.get(key, _GONE))) is not _GONE
        }
    now = _items(entries)
    if len(now) == len(before) and all(
        key is key_now and one is one_now
        for (key, one), (key_now, one_now) in zip(before.items(), now, strict=True)
    ):
        return
    base: Any = collections.OrderedDict if isinstance(entries, collections.OrderedDict) else dict
    base.clear(entries)
    for key, one in before.items():
        base.__setitem__(entries, key, one)


def _items(entries: Any) -> Any:
    """Return the items of a mapping, ignoring overrides of its class."""
    if isinstance(entries, collections.OrderedDict):
        return collections.OrderedDict.items(entries)
    return dict.items(entries)


def _refill_list(holder: Any, before: list[Any], is_special: bool) -> None:
    if is_special:
        found = (_resolved(one, _GONE) for one in before)
        before = [one for one in found if one is not _GONE]
    if len(holder) == len(before) and all(map(operator.is_, holder, before)):
        return
    if isinstance(holder, list):
        list.__setitem__(holder, slice(None), before)
    elif isinstance(holder, set):
        set.clear(holder)
        set.update(holder, before)
    else:
        collections.deque.clear(holder)
        collections.deque.extend(holder, before)


def _refill_namespace(
    get: Callable[[str, Any], Any],
    now: Any,
    before: dict[str, Any],
    put: Callable[[str, Any], object],
    drop: Callable[[str], object],
) -> None:
    """Restore the data of a namespace. Code in it belongs to the reloader, and later imports
    stay."""
    for name, value in before.items():
        there = get(name, _GONE)
        if there is not value and not _is_code(value) and not _is_code(there):
            put(name, value)
    for name in [name for name in now if name not in before]:
        if not name.startswith("__") and not _is_code(get(name, None)):
            drop(name)


def _refill_class(cls: type, before: dict[str, Any]) -> None:
    _refill_namespace(
        lambda name, otherwise: vars(cls).get(name, otherwise),
        vars(cls),
        before,
        lambda name, value: type.__setattr__(cls, name, value),
        lambda name: type.__delattr__(cls, name),
    )


def _is_code(value: Any) -> bool:
    return isinstance(value, (type, types.ModuleType)) or hasattr(type(value), "__get__")


def _set_class(value: Any, kind: type) -> None:
    if type(value) is not kind:
        object.__setattr__(value, "__class__", kind)


def _set_hooks(parameter: Any, name: str, hooks: Any) -> None:
    now = getattr(parameter, name, None)
    if now is not hooks:
        if now:
            now.clear()  # Torch goes on with it, whatever the attribute says.
        setattr(parameter, name, hooks)


class _StandIn:
    """A value in the copy of a holder, in place of one that it must not, or cannot, contain."""

    def renew(self) -> None: ...

    def now(self, there: Any) -> Any:
        """Return the value that the holder must have; ``there`` is its present value."""


class _CopiedIterator(_StandIn):
    def __init__(self, iterator: Any) -> None:
        self.kept = _copied(iterator)
        self._copy = self.kept

    def renew(self) -> None:
        """Make a new copy of the iterator, which all its holders share."""
        self._copy = _copied(self.kept)

    def now(self, there: Any) -> Any:
        return self._copy


class _Wrapper(_StandIn):
    """A model that is wrapped for a process group; it is not kept alive, because its hooks would
    still run after the group is replaced.
    """

    def __init__(self, wrapper: Any) -> None:
        self._ref = weakref.ref(wrapper)

    def now(self, there: Any) -> Any:
        if there is not _GONE:
            return there
        wrapper = self._ref()
        return _GONE if wrapper is None else wrapper


def _resolved(value: Any, there: Any) -> Any:
    return value.now(there) if isinstance(value, _StandIn) else value


def _copied(iterator: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, in Python 3.12
        return copy.copy(iterator)


def _is_of_values(container: Any) -> bool:
    """Whether all elements are immutable values, or tuples of these."""
    elements = container.values() if isinstance(container, dict) else container
    return all(
        type(one) in _ATOMS or (type(one) is tuple and all(type(each) in _ATOMS for each in one))
        for one in elements
    )


def _place_in(holder: Any, value: Any) -> str:
    if isinstance(holder, dict):
        return next((f"[{key!r}]" for key, one in holder.items() if one is value), "[...]")
    if isinstance(holder, (list, tuple, collections.deque)):
        return next((f"[{at}]" for at, one in enumerate(holder) if one is value), "[...]")
    if isinstance(holder, types.CellType):
        return ".<closure>"
    attributes = _dict_of(holder) or {}
    for name, one in attributes.items():
        if one is value:
            return f".{name}"
    for descriptor in _slots_of(type(holder)):
        try:
            if descriptor.__get__(holder) is value:
                return f".{descriptor.__name__}"
        except AttributeError:
            continue
    return ""


def _dict_of(value: Any) -> Any:
    """Return the value's ``__dict__``, ignoring overrides of attribute lookup in its class."""
    try:
        return _attributes_of(value, "__dict__")
    except (AttributeError, TypeError):
        return None


_slots: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> tuple[Any, ...]:
    found = _slots.get(kind)
    if found is None:
        found = _slots[kind] = tuple(
            descriptor
            for cls in kind.__mro__
            if "__slots__" in vars(cls)
            for descriptor in vars(cls).values()
            if isinstance(descriptor, types.MemberDescriptorType)
        )
    return found


def _wrappers() -> frozenset[type]:
    """Return the classes that wrap a model for a process group."""
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return frozenset()
    kind = parallel.DistributedDataParallel
    return frozenset((kind, *kind.__subclasses__()))


def _is_moving(value: Any) -> bool:
    """Whether it is an iterator that no copy can rewind."""
    kind = type(value)
    if kind in _ATOMS or kind in _COPYABLE or issubclass(kind, io.IOBase):
        return False
    return hasattr(kind, "__next__") and (is_library(kind.__module__) or not _dict_of(value))


_libraries: dict[str, bool] = {}
_users_modules: list[Any] = [0, []]  # how many there were of all, and the user's


def is_library(name: str | None) -> bool:
    """Whether a module of that name is not the user's own.

    A module without a file may be the user's: it was removed, or made by ``exec``.
    """
    if not name:
        return False
    found = _libraries.get(name)
    if found is not None:
        return found
    top = name.partition(".")[0]
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or ""
    found = top != _RECIPES and (
        top in sys.stdlib_module_names
        or top in _OURS
        or top in _LIBRARIES
        or file.startswith(OUR_FOLDER)
        or "site-packages" in file
        or "dist-packages" in file
    )
    if module is not None:
        _libraries[name] = found
    return found


def users_modules() -> list[types.ModuleType]:
    """Return all imported modules of the user's own, whose names a step may change."""
    modules: list[types.ModuleType]
    num_before, modules = _users_modules
    if num_before == len(sys.modules) and all(
        sys.modules.get(one.__name__) is one for one in modules
    ):
        return modules
    modules = [
        module
        for name, module in list(sys.modules.items())
        if type(module) is types.ModuleType
        and not is_library(name)
        and not name.startswith(_RECIPES)
        and getattr(module, "__file__", None)
    ]
    _users_modules[:] = len(sys.modules), modules
    return modules


_known_handlers: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


def _handler_of(kind: type) -> Callable[[Walk, Any], None]:
    for base, handler in _BASES:
        if issubclass(kind, base):
            return handler
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        if issubclass(kind, torch.Tensor):
            return Walk._tensor
        if issubclass(kind, torch.jit.ScriptModule):
            return Walk._script_module
        if issubclass(kind, torch.nn.Module):
            return _OBJECT
        if issubclass(kind, torch.optim.Optimizer):
            return Walk._optimizer
        if issubclass(kind, torch.Generator):
            return Walk._torch_generator
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        if issubclass(kind, numpy.ndarray):
            return Walk._array
        if issubclass(kind, numpy.generic):
            return Walk._nothing
        if issubclass(kind, numpy.random.Generator):
            return Walk._numpy_generator
        if issubclass(kind, numpy.random.BitGenerator):
            return Walk._bits
        if issubclass(kind, numpy.random.RandomState):
            return Walk._numpy_draws
    if kind.__module__.startswith(_TRAINING) or kind in _FOLLOWED:
        return _OBJECT
    if _tells_its_state(kind):
        return _TELLS
    is_of_library = is_library(kind.__module__)
    if hasattr(kind, "__next__") and (
        is_of_library or not (kind.__dictoffset__ or _slots_of(kind))
    ):
        return Walk._nothing if issubclass(kind, io.IOBase) else Walk._moving
    return Walk._nothing if is_of_library else _OBJECT


def _tells_its_state(kind: type) -> bool:
    methods = (getattr(kind, name, None) for name in ("state_dict", "load_state_dict"))
    return all(callable(method) for method in methods)


_OBJECT, _TELLS = Walk._object, Walk._tells
_FOLLOWED = frozenset({
    types.SimpleNamespace, collections.UserDict, collections.UserList, collections.ChainMap,
})  # fmt: skip
# The first that fits.
_BASES: tuple[tuple[Any, Callable[[Walk, Any], None]], ...] = (
    (_ATOM_BASES, Walk._nothing),
    (enum.Enum, Walk._member),
    (dict, Walk._dict),
    ((list, set, collections.deque), Walk._list),
    ((tuple, frozenset), Walk._elements),
    ((bytearray, array.array), Walk._bytes),
    (type, Walk._class),
    (types.FunctionType, Walk._function),
    (types.MethodType, Walk._method),
    (functools.partial, Walk._partial),
    ((staticmethod, classmethod), Walk._wrapped),
    (types.MappingProxyType, Walk._proxy),
    (types.CellType, Walk._cell),
    (weakref.ReferenceType, Walk._weak),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), Walk._weak_dict),
    (weakref.WeakSet, Walk._weak_set),
    ((weakref.ProxyType, weakref.CallableProxyType), Walk._nothing),
    (random.SystemRandom, Walk._nothing),
    (random.Random, Walk._drawn),
    ((io.BytesIO, io.StringIO), Walk._memory_file),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), Walk._moving),
)  # fmt: skip
