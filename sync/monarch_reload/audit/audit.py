"""Compares the live objects of the process with a fresh import of the reloaded modules."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from inspect import CO_NESTED
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec

from monarch_reload.audit.expected import Expected, defaults_of, is_plain
from monarch_reload.audit.findings import AuditFinding, AuditReport, Kind, counted
from monarch_reload.audit.graphs import OldGraph
from monarch_reload.audit.held import held_by_others, notes
from monarch_reload.audit.history import FreshCodes, PastCode
from monarch_reload.audit.literal_defaults import defaults_now
from monarch_reload.audit.living import LivingCode, code_of, running_codes, type_module
from monarch_reload.audit.natives import (
    adapters,
    copied_fields_that_differ,
    models,
    schema_of,
)
from monarch_reload.audit.other_places import of_files, of_workers
from monarch_reload.audit.stale_caches import stale_caches
from monarch_reload.kinds import definition_at, is_a, own_names
from monarch_reload.live.all_objects import objects_of
from monarch_reload.report import listed
from monarch_reload.source.codes import qualname_of
from monarch_reload.source.source import ModuleSource, RunningSources
from monarch_reload.source.statements import Statement
from monarch_reload.trial.stage import TrialStage


class Audit:
    """One search of the process for old code. ``ours`` are objects that the reloader keeps for an
    undo; they do not count as users of old code.

    ``pause`` is called between slices of the work, so that other threads can run.
    """

    def __init__(
        self,
        sources: RunningSources,
        history: PastCode,
        expected: Expected,
        *,
        ours: Callable[[], list[Any]] = list,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources, self._history, self._expected = sources, history, expected
        self._ours, self._pause = ours, pause
        self._names = frozenset(
            n for n in history.names if n in history.removed or (n in sources and n in sys.modules)
        )
        self._fresh: dict[str, FreshCodes] = {}
        self._at: defaultdict[str, list[str]] = defaultdict(list)  # modules by file
        for name in self._names:
            paths = {self._source_of(name).path, *(version.path for version in history.past(name))}
            for path in paths:
                self._at[path].append(name)
        all_paths = {source.path for _, source in sources.running()}
        self._snapshot = LivingCode(self._at.keys(), self._names, all_paths)

    def report(self, files: Iterable[str] = ()) -> AuditReport:
        """Return what still runs old code. ``files`` are changed files: modules that were loaded
        from them without the reloader's knowledge are reported too."""
        started = time.perf_counter()
        findings: list[AuditFinding] = []
        if self._names:
            self._snapshot.take(self._pause)
            has_schemas = any(map(schema_of, self._snapshot.classes))
            findings += self._caches()
            findings += self._defaults_of_closures()
            findings += self._definitions()
            findings += self._validators() if has_schemas else ()
            findings += self._values()
            findings += self._defaults()
            findings += self._suspended()
        findings += self._unfollowed(files := list(files))
        followed = {self._sources[name].path for name, _ in self._sources.loaded()}
        findings += of_files(files, followed, self._pause)
        findings += of_workers(self._history.older_workers)
        findings += self._graphs()
        looked_at = self._snapshot.num_functions + self._snapshot.num_classes
        return AuditReport(tuple(findings), looked_at, time.perf_counter() - started)

    # Functions and classes

    def _definitions(self) -> list[AuditFinding]:
        """Return the old functions and classes that are still in use.

        It returns a list, because a suspended generator would itself refer to the objects that it
        found.
        """
        snapshot = self._snapshot
        functions: list[tuple[FunctionType, _Origin]] = []
        for number, function in enumerate((*snapshot.functions, *snapshot.generated)):
            if number % 500 == 0:
                self._pause()
            if (origin := self._origin(function)) is not None:
                functions.append((function, origin))
        function = None  # type: ignore[assignment]
        classes = [(cls, why) for cls in snapshot.classes if (why := self._why_old(cls))]
        if not functions and not classes:
            return []
        things = [function for function, _ in functions] + [cls for cls, _ in classes]
        instances = objects_of([cls for cls, _ in classes]) if classes else []
        snapshot.forget()
        held = self._held(things, instances, [functions, classes])
        findings = list(
            _of_functions(
                (function.__code__, _owner_of(function), origin)
                for is_held, (function, origin) in zip(held, functions, strict=False)
                if is_held
            )
        )
        counts = Counter(id(type(instance)) for instance in instances)
        for is_held, (cls, why) in zip(held[len(functions) :], classes, strict=True):
            if is_held and (why == "copy" or counts[id(cls)]):
                name = f"{type_module(cls)}.{cls.__qualname__}"
                findings.append(_of_class(name, why, counts[id(cls)]))
        return findings

    def _defaults_of_closures(self) -> list[AuditFinding]:
        """Find inner functions that keep a default argument of an earlier version of the source.

        A reload cannot change the default, because it finds no such function by name.
        """
        groups: defaultdict[tuple[str, str, Any, Any], list[CodeType]] = defaultdict(list)
        for function in self._snapshot.functions:
            code, values = function.__code__, defaults_now(function)
            names = self._at.get(code.co_filename, ()) if code.co_flags & CO_NESTED else ()
            for name in names if values else ():
                for argument, value, new in self._lost_defaults(name, code, values):
                    groups[f"{name}.{_owner_of(function)}", argument, value, new].append(code)
        findings = []
        for (owner, argument, value, new), codes in groups.items():
            keep, first = ("keeps" if len(codes) == 1 else "keep"), codes[0]
            text = f"{counted(len(codes), 'live closure')} of `{owner}` {keep} the default"
            text += f" {argument} = {value!r}; new ones have {new!r}"
            text += f" ({first.co_name}, {_line(first)})"
            findings.append(AuditFinding("default", owner, len(codes), text))
        return findings

    def _lost_defaults(
        self, name: str, code: CodeType, values: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield (argument, its present value, its default in the source) for arguments whose
        present value is the default of an earlier version. A value that no version has was set by
        the program itself, and is not yielded.
        """
        if not self._runs(name, code):
            return
        fresh = self._fresh_of(name).defaults.get((code.co_name, code.co_firstlineno), {})
        for argument, value in values.items():
            if argument in fresh and _differ(fresh[argument], value):
                past_defaults = (
                    defaults[argument]
                    for version in self._history.past(name)
                    for place, defaults in version.defaults.items()
                    if place[0] == code.co_name and argument in defaults
                )
                if not all(_differ(default, value) for default in past_defaults):
                    yield argument, value, fresh[argument]

    def _caches(self) -> list[AuditFinding]:
        patched = {
            id(function) for ref in self._expected.patched if (function := ref()) is not None
        }
        findings = []
        for cache, edited in stale_caches(self._snapshot.caches, patched):
            name = f"{cache.__module__}.{cache.__qualname__}"
            text = f"the cache of `{name}` may hold results of old code: it calls `{edited}`"
            findings.append(AuditFinding("cache", name, 1, text))
        return findings

    def _origin(self, function: FunctionType) -> _Origin | None:
        """Return the module and the version that a function's old code comes from; None if the code
        is up to date."""
        code = function.__code__
        if _is_of_trial(function):
            return _Origin("trial", str(function.__module__), "")
        names = self._at.get(code.co_filename) or self._shipped(function)
        if not names or any(self._runs(name, code) for name in names):
            return None
        if any(callable(constant) for constant in code.co_consts):
            return None  # it calls the function that replaced it
        for name in names:
            version = self._history.version_of(name, code)
            if version is not None:
                return _Origin(self._kind_of(name, function), name, version.label)
        return None

    def _shipped(self, function: FunctionType) -> Sequence[str]:
        """Return the module of a function that was pickled by value and sent here, in a list; empty
        if it is not such a function.

        Its code has no file, and an earlier version of its module has exactly this code. Other code
        without a file was generated.
        """
        name, code = str(function.__module__), function.__code__
        if code.co_filename[:1] != "<" or name not in self._names:
            return ()
        return [name] if any(version.has(code) for version in self._history.past(name)) else ()

    def _kind_of(self, name: str, function: FunctionType) -> Kind:
        fresh, code = self._fresh_of(name), function.__code__
        owner = _owner_of(function).partition(".")[0]
        # A method of a class that is gone may have the name of many others.
        is_there = fresh.has_name(code.co_name) and fresh.has_name(owner)
        if name in self._history.removed or not is_there:
            return "gone"
        return "lines" if fresh.has_behaviour(code) else "code"

    def _runs(self, name: str, code: CodeType) -> bool:
        return self._fresh_of(name).has(code)

    def _fresh_of(self, name: str) -> FreshCodes:
        if name not in self._fresh:
            self._fresh[name] = FreshCodes(self._source_of(name))
        return self._fresh[name]

    def _source_of(self, name: str) -> ModuleSource:
        return self._sources[name] if name in self._sources else self._history.removed[name]

    def _why_old(self, cls: type) -> str:
        module, qualname = str(type_module(cls)), type.__dict__["__qualname__"].__get__(cls)
        if "<" in qualname:
            return ""
        if module not in sys.modules:
            return "gone"  # its module was removed with its file
        top = qualname.partition(".")[0]
        current = definition_at(module, qualname)
        if current is cls:
            return "gone" if module in self._history.removed else ""
        is_known = any(ref() is cls for ref in self._expected.classes)
        if not is_known and not _is_defined_in(cls, own_names(sys.modules[module])):
            return ""
        if is_a(current, type):
            is_same = type_module(current) == module and current.__qualname__ == qualname
            if is_known or (is_same and self._is_plainly_defined(module, top)):
                return "copy"
            return ""
        if module in self._history.removed:
            return "gone"
        return "gone" if current is None and self._was_defined(module, top) else ""

    def _is_plainly_defined(self, module: str, name: str) -> bool:
        """Return whether the source defines the name by one class statement without decorators."""
        definitions = [s for s in self._statements(module) if name in s.defines]
        return len(definitions) == 1 and definitions[0].is_class and not definitions[0].is_decorated

    def _was_defined(self, module: str, name: str) -> bool:
        """Return whether an earlier version of the source had a class of this name, and the present
        one has none.
        """
        if any(name in s.binds or "*" in s.binds for s in self._statements(module)):
            return False
        return any(
            place[0] == name for version in self._history.past(module) for place in version.codes
        )

    def _statements(self, module: str) -> Sequence[Statement]:
        try:
            return self._sources[module].statements
        except (SyntaxError, ValueError):
            return ()

    # What native code keeps

    def _validators(self) -> Iterator[AuditFinding]:
        holders: list[Any] = list(models())
        if not holders:
            return
        holders += objects_of(adapters())
        groups: defaultdict[tuple[str, str], int] = defaultdict(int)
        for holder in holders:
            for cls in copied_fields_that_differ(holder, self._names):
                groups[_title(holder), f"{cls.__module__}.{cls.__qualname__}"] += 1
        for (holder, name), count in groups.items():
            text = f"the validator of {holder} has the fields of `{name}` as they were"
            yield AuditFinding("native", name, count, text)

    def _values(self) -> Iterator[AuditFinding]:
        for expected in list(self._expected.values.values()):
            owner = expected.owner()
            if owner is None:
                continue
            if is_a(owner, type):
                current, kind = getattr(owner, expected.name, None), "class"
            else:
                current, kind = owner.__globals__.get(expected.name), "generated function"
            if type(current) is not type(expected.value) or current != expected.value:
                name = f"{owner.__module__}.{owner.__qualname__}"
                text = f"the {kind} `{name}` has {expected.name} = {current!r}; a fresh import"
                yield AuditFinding("native", name, 1, f"{text} gives {expected.value!r}")

    def _defaults(self) -> Iterator[AuditFinding]:
        """Find instances with an attribute that still has an earlier default of its class."""
        owners = [changed.owner() for changed in self._expected.defaults]
        instances = objects_of([owner for owner in owners if owner is not None])
        for owner, changed in zip(owners, self._expected.defaults, strict=True):
            if owner is None:
                continue
            new = defaults_of(owner).get(changed.name)
            keeping = [
                instance
                for instance in instances
                if type(instance) is owner
                and _value_of(instance, changed.name) == (changed.before,)
            ]
            if not keeping or new == changed.before:
                continue
            name = f"{owner.__module__}.{owner.__qualname__}"
            who = listed(self._names_of(keeping))
            who = who or f"{counted(len(keeping), 'instance')} of {name}"
            verb = "keeps" if len(keeping) == 1 else "keep"
            text = f"{who} {verb} {changed.name} = {changed.before!r}; new ones have {new!r}"
            yield AuditFinding("value", name, len(keeping), text)

    def _names_of(self, things: Collection[Any]) -> Iterator[str]:
        ids = {id(thing) for thing in things}
        for name, module in self._sources.loaded():
            for key, value in dict(own_names(module)).items():
                if id(value) in ids:
                    yield f"{name}.{key}"

    # What still runs, and what nobody follows

    def _suspended(self) -> Iterator[AuditFinding]:
        running = [code for code in running_codes() if code.co_filename in self._at]
        suspended = [code_of(generator) for generator in self._snapshot.suspended]
        groups: defaultdict[tuple[str, str], int] = defaultdict(int)
        for code in (*running, *suspended):
            for name in self._at[code.co_filename]:
                is_old = code.co_name != "<module>" and not self._runs(name, code)
                if is_old and (version := self._history.version_of(name, code)):
                    groups[f"{name}.{qualname_of(code)}", version.label] += 1
        for (name, label), count in groups.items():
            text = f"`{name}` is still running code{_of(label)}, in which it ends"
            yield AuditFinding("running", name, count, text)

    def _unfollowed(self, files: Iterable[str]) -> Iterator[AuditFinding]:
        changed = {os.path.realpath(file) for file in files if file.endswith(".py")}
        names = {os.path.basename(file) for file in changed}
        if not changed:
            return
        for name, module in sys.modules.copy().items():
            path = own_names(module).get("__file__")
            if not isinstance(path, str) or name in self._sources:
                continue
            is_one = os.path.basename(path) in names and os.path.realpath(path) in changed
            if is_one and os.path.exists(path):
                text = f"module `{name}` was loaded from {path} unseen, and runs its old code"
                yield AuditFinding("module", name, 1, text)

    def _graphs(self) -> Iterator[AuditFinding]:
        texts = {name: self._source_of(name).text for name in self._names}
        groups: Counter[OldGraph] = Counter(self._history.older_graphs.old(texts))
        for graph, count in groups.items():
            graphs = counted(count, "graph")
            runs = "runs" if count == 1 else "run"
            if graph.functions:
                text = f"{graphs} that {graph.maker} made of {listed(graph.functions)}"
                text += f" {runs} the code{_of(graph.label)}"
                yield AuditFinding("graph", graph.functions[0], count, text)
            else:
                text = f"{graphs} of {graph.maker} {runs} what was traced before an edit"
                yield AuditFinding("cache", graph.maker, count, text)

    # Both

    def _held(self, things: list[Any], around: list[Any], ours: list[Any]) -> list[bool]:
        """Return a list with a bool for each of ``things``: whether anything but the audit and the
        reloader refers to it.

        The references are looked up several times, because a running call may end in between.
        Objects in ``around`` and ``ours`` do not count as users, nor do unreachable objects.
        """
        namespaces = {id(own_names(module)) for module in sys.modules.copy().values()}
        own_objects = [around, ours, *ours, *(pair for pairs in ours for pair in pairs)]
        own_objects.append(self._snapshot.suspended)
        own_objects += objects_of(notes())
        # An object that only a reloader's own notes refer to does not count as used.
        around = list(around)
        newest: list[Any] = []
        held = [True] * len(things)
        for _ in range(_ROUNDS):
            are_held = held_by_others(
                things, around, [newest, *own_objects, *self._ours()], namespaces
            )
            held = [was_held and is_held for was_held, is_held in zip(held, are_held, strict=True)]
            alive = [thing for thing, is_held in zip(things, held, strict=True) if is_held]
            if not alive:
                break
            known_ids = {id(around), id(newest), id(alive), *map(id, own_objects), *namespaces}
            newest = self._holders((*alive, *newest), known_ids)
            around += newest
            own_objects += [
                holder for holder in newest if type(holder).__module__.startswith("monarch_reload.")
            ]
            del alive
        # These lists may refer to each other, and would keep dead objects.
        for container in (around, newest, own_objects):
            container.clear()
        return held

    def _holders(self, things: tuple[Any, ...], known_ids: set[int]) -> list[Any]:
        """Return objects that refer to ``things``, as the garbage collector knows them, without
        frames, modules and the objects whose ids are in ``known_ids``."""
        holders: list[Any] = []
        known_ids |= {id(things), id(holders)}
        for start in range(0, len(things), _ASKED_AT_ONCE):
            self._pause()
            holders += (
                referrer
                for referrer in gc.get_referrers(*things[start : start + _ASKED_AT_ONCE])
                if id(referrer) not in known_ids and not is_a(referrer, (FrameType, ModuleType))
            )
            known_ids.update(map(id, holders))
        return holders[:_MOST_HOLDERS]


_ROUNDS = 4
# The collector compares each reference of the process with each thing that it is asked about, and
# lets no other thread run meanwhile.
_ASKED_AT_ONCE = 25
_MOST_HOLDERS = 100


class _Origin(msgspec.Struct, frozen=True):
    """The module and the version that a piece of old code comes from."""

    kind: Kind
    module: str
    label: str


def _is_of_trial(function: FunctionType) -> bool:
    """Return whether a function looks its names up in the namespace of a trial that was
    committed."""
    names = getattr(function, "__builtins__", None)
    imports = names.get("__import__") if type(names) is dict else None
    stage = getattr(imports, "__self__", None)
    return type(stage) is TrialStage and stage.was_taken


def _of_functions(old: Iterable[tuple[CodeType, str, _Origin]]) -> Iterator[AuditFinding]:
    groups: defaultdict[tuple[str, _Origin], list[CodeType]] = defaultdict(list)
    for code, owner, origin in old:
        groups[owner, origin].append(code)
    for (owner, origin), codes in groups.items():
        name, count = f"{origin.module}.{owner}", len(codes)
        inner = sorted({code.co_name for code in codes} - {owner.rpartition(".")[2]})
        subject = f"{counted(count, 'live closure')} of `{name}`"
        if not inner:
            subject = f"{counted(count, 'live function')} `{name}`"
        location = f"({', '.join([*inner[:3], _line(codes[0])])})"
        text = f"{subject} {_what_it_does(origin, count)} {location}"
        yield AuditFinding(origin.kind, name, count, text)


def _what_it_does(origin: _Origin, count: int) -> str:
    runs, says, looks = ("runs", "says", "looks") if count == 1 else ("run", "say", "look")
    label = _of(origin.label)
    return {
        "code": f"{runs} the code{label}",
        "lines": f"{says} the lines{label} in tracebacks",
        "gone": f"{runs} code{label} that is in no file any more",
        "trial": f"{looks} names up in what is left of a trial",
    }[origin.kind]


def _differ(one: Any, other: Any) -> bool:
    return type(one) is not type(other) or one != other


def _is_defined_in(cls: type, namespace: dict[str, Any]) -> bool:
    """Return whether a function of the class has ``namespace`` as its globals. The class's
    ``__module__`` is no proof, because another module may have had the same name before.
    """
    for value in vars(cls).values():
        function = value.__func__ if type(value) in (staticmethod, classmethod) else value
        if type(function) is FunctionType and function.__globals__ is namespace:
            return True
    return False


def _of_class(name: str, why: str, count: int) -> AuditFinding:
    are = "are" if count > 1 else "is"
    if why == "gone":
        text = f"{counted(count, 'instance')} of `{name}` {are} alive, and no file has that class"
        return AuditFinding("gone", name, count, f"{text} any more")
    subject = f"{counted(count, 'instance')} {are} of" if count else "something holds"
    text = f"{subject} a class `{name}` that is not the one of that name"
    text += ": `isinstance` fails, and it runs old code"
    return AuditFinding("class", name, count or 1, text)


def _line(code: CodeType) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _of(label: str) -> str:
    return f" of {label}" if label else " of an earlier version"


def _owner_of(function: FunctionType) -> str:
    """Return the name of the top-level function or method that contains the function's code, which
    may be the function itself."""
    qualname = getattr(function.__code__, "co_qualname", function.__qualname__)
    return str(qualname).partition(".<locals>")[0]


def _title(holder: Any) -> str:
    if is_a(holder, type):
        return f"`{holder.__module__}.{holder.__qualname__}`"
    return f"a {type(holder).__name__}"


def _value_of(instance: Any, name: str) -> tuple[Any, ...]:
    """Return the value of an attribute in a tuple if it is plain; an empty tuple if it is not, or
    if there is no such attribute.
    """
    try:
        value = object.__getattribute__(instance, name)
    except AttributeError:
        return ()
    return (value,) if is_plain(value) else ()
