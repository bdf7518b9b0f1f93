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
import contextlib
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
from typing import Any

from monarch.runs.hold.tensor_copies import Copies, Undo
from monarch.version import OUR_FOLDER

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


class Walk:
    """A walk through a state; afterwards `put_back` restores the objects that it has met.

    ``copies`` gets the tensors, arrays, optimizers, and objects with a ``state_dict``.
    ``most_looked_into`` is how many elements a container may have to be searched, and
    ``most_objects`` how many objects in all; ``None`` is no limit.
    """

    def __init__(
        self,
        copies: Copies,
        *,
        most_looked_into: int | None = None,
        most_objects: int | None = None,
    ) -> None:
        self._copies = copies
        self._most_looked_into = most_looked_into
        self._most_objects = most_objects
        #: Objects to follow; it grows during the walk.
        self._todo: list[Any] = []
        #: Each object with its holder, by id. It keeps the objects alive, so that ids stay unique.
        self._seen: dict[int, tuple[Any, Any]] = {}
        #: Names of the roots, by id.
        self._names: dict[int, str] = {}
        #: The method that follows objects of a type.
        self._handlers: dict[type, Callable[[Walk, Any], None]] = {}
        #: The slots of a type, and whether its objects change their class.
        self._shapes: dict[type, tuple[tuple[Any, ...], bool]] = {}
        #: Types whose objects a copy of their holder must not contain.
        self._special = _COPYABLE | _wrappers()
        #: Replacements of such objects in the copies, by id.
        self._stand_ins: dict[int, _StandIn] = {}
        #: Undos by ``load_state_dict``; they run before all others.
        self._loads: list[Undo] = []
        self._undos: list[Undo] = []
        #: Containers that were empty.
        self._empty: list[Any] = []
        #: Mappings and other containers, with their elements, and whether these have stand-ins.
        self._dicts: list[tuple[Any, dict[Any, Any], bool]] = []
        self._lists: list[tuple[Any, list[Any], bool]] = []
        #: Classes, modules' globals and enum members, each with its names and values.
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._members: list[tuple[dict[str, Any], dict[str, Any]]] = []
        #: Objects, each with its class and its ``__dict__``.
        self._kinds: list[tuple[Any, type, dict[str, Any] | None]] = []
        #: Parameters that had no hooks.
        self._without_hooks: list[Any] = []
        #: Paths of containers that were too large to search.
        self._shallow: list[tuple[str, Any]] = []
        #: Descriptions of objects that cannot be restored.
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
        values = dict(namespace)
        self._namespaces.append((namespace, values))
        self._names[id(module)] = module.__name__
        self._seen[id(module)] = (module, None)
        self._add(values.values(), module)

    def finish(self) -> None:
        """Follow all objects, and drop what `put_back` does not need."""
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

    def _add(self, values: Iterable[Any], holder: Any) -> bool:
        """Queue values for the walk. Return whether one of them needs a replacement in the copy of
        ``holder``, the object that refers to them.
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

    # Methods that follow objects, by type

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
        copied, is_special = dict(_items(entries)), False
        if self._is_looked_into(copied, holder):
            is_special = self._add(copied.values(), holder)
            if not has_names:
                self._add(copied, holder)
        if is_special:
            copied = {key: self._stood_in(value) for key, value in copied.items()}
        self._dicts.append((entries, copied, is_special))

    def _list(self, value: Any) -> None:
        elements, is_special = list(value), False
        if self._is_looked_into(elements, value):
            is_special = self._add(elements, value)
            if is_special:
                elements = [self._stood_in(element) for element in elements]
        self._lists.append((value, elements, is_special))
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
            for element in value:
                if isinstance(stand_in := self._stand_ins.get(id(element)), _CopiedIterator):
                    self._note_unkept(self._path(element, value), stand_in.kept)
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
            kept = descriptor.__get__(owner)
        except (AttributeError, ValueError):  # the latter for an empty cell
            kept = _GONE
        if self._add((kept,), owner):
            kept = self._stood_in(kept)

        def put_back() -> None:
            value = _resolved(kept, _GONE)
            if value is not _GONE:
                descriptor.__set__(owner, value)
                return
            try:
                descriptor.__delete__(owner)
            except AttributeError:
                pass

        self._undos.append(put_back)

    def _optimizer(self, value: Any) -> None:
        self._copies.optimizer(value)
        self._object(value)

    def _script_module(self, value: Any) -> None:
        """Follow a script module's tensors. Python cannot see anything else of it."""
        self._add((*value.parameters(), *value.buffers()), value)

    def _tells(self, value: Any) -> None:
        """Record an object's attributes, so that they can be compared and restored exactly.

        If it has none, or a copy could not rewind one of them, an iterator, record its
        ``state_dict``.
        """
        attributes = _dict_of(value)
        has_entries = attributes is not None or _slots_of(type(value))
        if not has_entries or any(map(_is_moving, (attributes or {}).values())):
            self._loads.append(self._copies.told(value))
        else:
            self._object(value)

    def _tensor(self, value: Any) -> None:
        if inner := self._copies.tensor(value):
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
        all_hooks = [getattr(parameter, name, None) for name in _HOOKS]
        if all_hooks == _NO_HOOKS:
            self._without_hooks.append(parameter)
            return
        for name, hooks in zip(_HOOKS, all_hooks, strict=True):
            if hooks is not None:
                self._keep_dict(hooks, parameter)
            self._undos.append(functools.partial(_set_hooks, parameter, name, hooks))

    def _member(self, value: Any) -> None:
        """Record the attributes of an enum member.

        The member itself is not recorded: it belongs to its class, and new code makes new members.
        """
        if not is_library(type(value).__module__):
            attributes = _dict_of(value)
            self._members.append((attributes, dict(attributes)))
            self._add(attributes.values(), value)

    def _array(self, value: Any) -> None:
        if value.dtype.hasobject:
            self._add(value.flat, value)
        self._copies.array(value)
        if not value.flags.owndata:
            self._add((value.base,), value)
        self._object(value)

    def _bytes(self, value: Any) -> None:
        copied = value[:]
        self._undos.append(lambda: operator.setitem(value, slice(None), copied))

    def _drawn(self, value: Any) -> None:
        state = value.getstate()
        self._undos.append(lambda: value.setstate(state))
        self._object(value)

    def _random_generator(self, value: Any) -> None:
        """Record the state of a generator of torch, or of numpy's older kind."""
        state = value.get_state()
        self._undos.append(lambda: value.set_state(state))

    def _numpy_generator(self, value: Any) -> None:
        self._add((value.bit_generator,), value)

    def _bits(self, value: Any) -> None:
        state = copy.deepcopy(value.state)
        self._undos.append(lambda: setattr(value, "state", state))

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
        self._slot(cell, _CELL_CONTENTS)

    def _class(self, value: type) -> None:
        if is_library(value.__module__) or issubclass(value, _ATOM_BASES):
            return
        if issubclass(value, enum.Enum):
            self._add(value.__members__.values(), value)
            return
        attributes = {name: x for name, x in vars(value).items() if not name.startswith("__")}
        self._classes.append((value, attributes))
        self._add(attributes.values(), value)
        self._add(value.__mro__[1:], value)

    def _weak(self, value: Any) -> None:
        self._add((value(),), value)

    def _weak_dict(self, value: Any) -> None:
        entries = dict(value.items())
        self._keep_weak(value, entries)
        self._add(entries.values(), value)

    def _weak_set(self, value: Any) -> None:
        self._keep_weak(value, list(value))

    def _keep_weak(self, container: Any, kept: Any) -> None:
        self._add(kept, container)

        def put_back() -> None:
            container.clear()
            container.update(kept)

        self._undos.append(put_back)

    def _proxy(self, value: Any) -> None:
        self._add(gc.get_referents(value), value)

    def _moving(self, value: Any) -> None:
        self._note_unkept(self._path(value), value)

    def _nothing(self, value: Any) -> None:
        pass

    # Names

    def _note_unkept(self, path: str, value: Any) -> None:
        self._unkept.append(f"{path} (a {type(value).__name__})")

    def _path(self, value: Any, holder: Any = None) -> str:
        """Return the path to a value, as a person would write it: ``self.rows[0]``."""
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
            parts.append(_step_to(value, holder))
            value, holder = holder, None

    def put_back(self, *, is_same_code: bool = True) -> list[str]:
        """Restore all objects; return descriptions of those that could not be restored.

        If ``is_same_code`` is false, names of modules and classes keep their current values. May
        be called more than once.
        """
        for load in self._loads:
            load()
        for stand_in in self._stand_ins.values():
            stand_in.renew()
        for parameter in self._without_hooks:
            for name in _HOOKS:
                _set_hooks(parameter, name, None)
        for empty in self._empty:
            if empty:
                empty.clear()
        for entries, kept, is_special in self._dicts:
            _refill_dict(entries, kept, is_special)
        for holder, elements, is_special in self._lists:
            _refill_list(holder, elements, is_special)
        for undo in self._undos:
            undo()
        if is_same_code:
            for names, kept in self._namespaces:
                _refill_namespace(names.get, names, kept, names.__setitem__, names.pop)
            for cls, kept in self._classes:
                _refill_class(cls, kept)
            for entries, kept in self._members:
                _refill_dict(entries, kept, False)
            for value, kind, attributes in self._kinds:
                _set_class(value, kind)
                if attributes is not None and _dict_of(value) is not attributes:
                    object.__setattr__(value, "__dict__", attributes)
        deep = [path for path, container in self._shallow if not _is_of_values(container)]
        return [*self._unkept, *(f"the elements of {path}" for path in deep)]


def _refill_dict(entries: Any, kept: dict[Any, Any], is_special: bool) -> None:
    if is_special:
        kept = {
            key: value
            for key, stand_in in kept.items()
            if (value := _resolved(stand_in, entries.get(key, _GONE))) is not _GONE
        }
    current = _items(entries)
    if len(current) == len(kept) and all(
        key is current_key and value is current_value
        for (key, value), (current_key, current_value) in zip(kept.items(), current, strict=True)
    ):
        return
    base: Any = collections.OrderedDict if isinstance(entries, collections.OrderedDict) else dict
    base.clear(entries)
    for key, value in kept.items():
        base.__setitem__(entries, key, value)


def _items(entries: Any) -> Any:
    """Return the items of a mapping, ignoring overrides of its class."""
    if isinstance(entries, collections.OrderedDict):
        return collections.OrderedDict.items(entries)
    return dict.items(entries)


def _refill_list(holder: Any, kept: list[Any], is_special: bool) -> None:
    if is_special:
        elements = (_resolved(element, _GONE) for element in kept)
        kept = [element for element in elements if element is not _GONE]
    if len(holder) == len(kept) and all(map(operator.is_, holder, kept)):
        return
    if isinstance(holder, list):
        list.__setitem__(holder, slice(None), kept)
    elif isinstance(holder, set):
        set.clear(holder)
        set.update(holder, kept)
    else:
        collections.deque.clear(holder)
        collections.deque.extend(holder, kept)


def _refill_namespace(
    get: Callable[[str, Any], Any],
    names: Iterable[str],
    kept: dict[str, Any],
    put: Callable[[str, Any], object],
    drop: Callable[[str], object],
) -> None:
    """Restore the data of a namespace, whose current ``names`` are given. Functions, classes and
    modules are left as they are: the reloader has changed the code, and later imports stay.
    """
    for name, value in kept.items():
        current = get(name, _GONE)
        if current is not value and not _is_code(value) and not _is_code(current):
            put(name, value)
    for name in [name for name in names if name not in kept]:
        if not name.startswith("__") and not _is_code(get(name, None)):
            drop(name)


def _refill_class(cls: type, kept: dict[str, Any]) -> None:
    _refill_namespace(
        lambda name, otherwise: vars(cls).get(name, otherwise),
        vars(cls),
        kept,
        lambda name, value: type.__setattr__(cls, name, value),
        lambda name: type.__delattr__(cls, name),
    )


def _is_code(value: Any) -> bool:
    return isinstance(value, (type, types.ModuleType)) or hasattr(type(value), "__get__")


def _set_class(value: Any, kind: type) -> None:
    if type(value) is not kind:
        object.__setattr__(value, "__class__", kind)


def _set_hooks(parameter: Any, name: str, hooks: Any) -> None:
    current = getattr(parameter, name, None)
    if current is not hooks:
        if current:
            current.clear()  # Torch keeps using it, whatever the attribute says.
        setattr(parameter, name, hooks)


class _StandIn:
    """Replaces a value in the copy of its holder, if the value itself must not be in it."""

    def renew(self) -> None:
        """Prepare to restore the state once more. It is called before the holders get their
        values."""

    def value(self, current: Any) -> Any:
        """Return the value that a holder gets when the state is restored. ``current`` is the value
        that it has now.
        """


class _CopiedIterator(_StandIn):
    def __init__(self, iterator: Any) -> None:
        self.kept = _copied(iterator)
        self._copy = self.kept

    def renew(self) -> None:
        """Make a new copy of the iterator, which all its holders share."""
        self._copy = _copied(self.kept)

    def value(self, current: Any) -> Any:
        return self._copy


class _Wrapper(_StandIn):
    """Stands in for a model that is wrapped for a process group, such as a DDP model, in the copy
    of its holder.

    It does not keep the wrapper alive: the hooks of the wrapper would still run after its process
    group is replaced.
    """

    def __init__(self, wrapper: Any) -> None:
        self._ref = weakref.ref(wrapper)

    def value(self, current: Any) -> Any:
        if current is not _GONE:
            return current
        wrapper = self._ref()
        return _GONE if wrapper is None else wrapper


def _resolved(value: Any, current: Any) -> Any:
    return value.value(current) if isinstance(value, _StandIn) else value


def _copied(iterator: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, in Python 3.12
        return copy.copy(iterator)


def _is_of_values(container: Any) -> bool:
    """Whether all elements are immutable values, or tuples of these."""
    elements = container.values() if isinstance(container, dict) else container
    return all(
        type(x) in _ATOMS or (type(x) is tuple and all(type(part) in _ATOMS for part in x))
        for x in elements
    )


def _step_to(value: Any, holder: Any) -> str:
    """Return the part of a path that leads from a holder to a value: ``.name`` or ``[0]``."""
    if isinstance(holder, dict):
        return next((f"[{key!r}]" for key, entry in holder.items() if entry is value), "[...]")
    if isinstance(holder, (list, tuple, collections.deque)):
        return next((f"[{n}]" for n, element in enumerate(holder) if element is value), "[...]")
    if isinstance(holder, types.CellType):
        return ".<closure>"
    attributes = _dict_of(holder) or {}
    for name, attribute in attributes.items():
        if attribute is value:
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
    slots = _slots.get(kind)
    if slots is None:
        slots = _slots[kind] = tuple(
            descriptor
            for cls in kind.__mro__
            if "__slots__" in vars(cls)
            for descriptor in vars(cls).values()
            if isinstance(descriptor, types.MemberDescriptorType)
        )
    return slots


def _wrappers() -> frozenset[type]:
    """Return the classes that wrap a model for a process group."""
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return frozenset()
    kind = parallel.DistributedDataParallel
    return frozenset((kind, *kind.__subclasses__()))


def _is_moving(value: Any) -> bool:
    """Whether the value is an iterator that no copy can rewind."""
    kind = type(value)
    if kind in _ATOMS or kind in _COPYABLE or issubclass(kind, io.IOBase):
        return False
    return hasattr(kind, "__next__") and (is_library(kind.__module__) or not _dict_of(value))


_libraries: dict[str, bool] = {}
_users_modules: list[Any] = [0, []]  # the number of imported modules, and the user's own


def is_library(name: str | None) -> bool:
    """Whether a module of that name is not the user's own.

    A module without a file may be the user's: it was removed, or made by ``exec``.
    """
    if not name:
        return False
    is_of_library = _libraries.get(name)
    if is_of_library is not None:
        return is_of_library
    top = name.partition(".")[0]
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or ""
    is_of_library = top != _RECIPES and (
        top in sys.stdlib_module_names
        or top in _OURS
        or top in _LIBRARIES
        or file.startswith(OUR_FOLDER)
        or "site-packages" in file
        or "dist-packages" in file
        or top in _installed_beside(name, file)
    )
    if module is not None:
        _libraries[name] = is_of_library
    return is_of_library


def _installed_beside(name: str, file: str) -> frozenset[str]:
    """Return the packages that pip has installed into the folder from which the module ``name`` was
    imported: with `pip install --target` that may be any folder.
    """
    # A package's own file is one folder deeper than its name says.
    depth = name.count(".") + os.path.basename(file).startswith("__init__.")
    for _ in range(depth + 1):
        file = os.path.dirname(file)
    return _installed_in(file) if file else frozenset()


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    packages: set[str] = set()
    for record in pathlib.Path(folder).glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError, ValueError):
            for line in record.read_text().splitlines():
                packages.add(line.partition(",")[0].partition("/")[0].removesuffix(".py"))
    return frozenset(packages)


def users_modules() -> list[types.ModuleType]:
    """Return all imported modules of the user's own, whose names a step may change."""
    modules: list[types.ModuleType]
    num_before, modules = _users_modules
    if num_before == len(sys.modules) and all(
        sys.modules.get(module.__name__) is module for module in modules
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
    for library, name, handler in _LIBRARY_BASES:
        module = sys.modules.get(library)
        if module is not None and issubclass(kind, operator.attrgetter(name)(module)):
            return handler
    if kind.__module__.startswith(_TRAINING) or kind in _FOLLOWED:
        return _OBJECT
    if all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict")):
        return _TELLS
    is_of_library = is_library(kind.__module__)
    if hasattr(kind, "__next__") and (
        is_of_library or not (kind.__dictoffset__ or _slots_of(kind))
    ):
        return Walk._nothing if issubclass(kind, io.IOBase) else Walk._moving
    return Walk._nothing if is_of_library else _OBJECT


_CELL_CONTENTS: Any = vars(types.CellType)["cell_contents"]
_OBJECT, _TELLS = Walk._object, Walk._tells
_FOLLOWED = frozenset({
    types.SimpleNamespace, collections.UserDict, collections.UserList, collections.ChainMap,
})  # fmt: skip
# The first base class of an object's type decides. These are tried last, of imported libraries.
_LIBRARY_BASES: tuple[tuple[str, str, Callable[[Walk, Any], None]], ...] = (
    ("torch", "Tensor", Walk._tensor),
    ("torch", "jit.ScriptModule", Walk._script_module),
    ("torch", "nn.Module", _OBJECT),
    ("torch", "optim.Optimizer", Walk._optimizer),
    ("torch", "Generator", Walk._random_generator),
    ("numpy", "ndarray", Walk._array),
    ("numpy", "generic", Walk._nothing),
    ("numpy", "random.Generator", Walk._numpy_generator),
    ("numpy", "random.BitGenerator", Walk._bits),
    ("numpy", "random.RandomState", Walk._random_generator),
)
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
