"""Runs the statements of a plan beside the live modules, which stay as they are.

Each module gets a namespace laid over its own: a copy in which new values replace old ones.
Code that runs there sees other staged modules through views, whether it imports them or has
them already. What the statements append to registries of ours (module-level lists, dicts and
sets) is taken out again and kept for the commit.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import gc
import operator
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from .classes import keep_live_values, kept_names
from .errors import ReloadError
from .flips import MISSING, Action
from .plan import ModulePlan, Plan
from .source import ImportHook, Source

_CONTAINERS = (dict, list, set, OrderedDict, defaultdict)
_TOO_BIG_TO_HOLD_BACK = 10_000
_FUTURE_FLAGS = functools.reduce(
    operator.or_,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)


class Stage:
    """The outcome of running a plan: namespaces, and everything that was made on the way."""

    def __init__(self, hook: ImportHook) -> None:
        self._hook = hook
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.made: dict[int, Any] = {}  # every container object made meanwhile, by id
        self.made_is_exact = False  # else it holds older objects too
        self.imported: list[str] = []
        self.held_back: list[HeldBack] = []
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._open = True

    def run(
        self, plan: Plan, sources: dict[str, Source], ours: Iterable[tuple[str, ModuleType]]
    ) -> None:
        """Raises ReloadError for what the new code raises; `close` cleans up then."""
        involved = {name: p for name, p in plan.modules.items() if p.run or p.twin}
        for name, module_plan in involved.items():
            namespace = dict(vars(sys.modules[name]))
            for gone in module_plan.edit.gone:
                namespace.pop(gone, None)
            self.namespaces[name] = namespace
        snapshots = [_Snapshot(container) for container in _containers(ours)]
        self._hook.builtins, self._hook.imported = self.builtins, self.imported
        self._hook.thread = threading.get_ident()
        collecting = gc.isenabled()
        gc.disable()
        gc.collect(0)
        collections = _num_collections()
        try:
            for name, module_plan in involved.items():
                self._run_module(name, module_plan, sources[name])
        finally:
            # What was made meanwhile is the young generation, unless somebody collected.
            self.made_is_exact = collections == _num_collections()
            young = 0 if self.made_is_exact else None
            self.made = {id(thing): thing for thing in gc.get_objects(generation=young)}
            if collecting:
                gc.enable()
            self._hook.builtins = None
            self.held_back = [held for s in snapshots if (held := s.take_out()) is not None]
        for namespace in self.namespaces.values():
            for name, value in list(namespace.items()):
                if type(value) is StagedModule:
                    namespace[name] = value.__reload_module__

    def _run_module(self, name: str, plan: ModulePlan, source: Source) -> None:
        module = sys.modules[name]
        namespace = self.namespaces[name]
        namespace["__builtins__"] = self.builtins
        for key, value in list(namespace.items()):
            if isinstance(value, ModuleType):
                namespace[key] = self._view(value)
        flags = source.code.co_flags & _FUTURE_FLAGS
        for index in sorted(plan.run | plan.twin):
            statement = plan.edit.new[index]
            body: list[ast.stmt] = [statement.node]
            code = compile(
                ast.Module(body, []), source.path, "exec", flags=flags, dont_inherit=True
            )
            try:
                exec(code, namespace)
            except (Exception, SystemExit) as error:
                raise ReloadError.of_exception(
                    error, "run", source.path, {source.path: source.text}
                ) from error
            if statement.name is not None:
                origin = plan.edit.alignment.source_of(index)
                old = None if origin is None else plan.edit.old[origin]
                twin, live = namespace.get(statement.name), vars(module).get(statement.name)
                if isinstance(twin, FunctionType) and isinstance(live, FunctionType):
                    if index in plan.twin:
                        twin.__defaults__ = live.__defaults__
                        twin.__kwdefaults__ = live.__kwdefaults__
                elif old is not None and old.is_class and statement.is_class:
                    changed = plan.forced_by.get(index, frozenset())
                    if isinstance(twin, type) and isinstance(live, type) and twin is not live:
                        kept = kept_names(live, old, statement, changed)
                        keep_live_values(live, twin, kept)

    def _view(self, module: ModuleType) -> ModuleType:
        name = module.__name__
        staged = name in self.namespaces or any(n.startswith(f"{name}.") for n in self.namespaces)
        if type(module) is StagedModule or not staged or not self._open:
            return module
        return StagedModule(module, self)

    def _import(
        self,
        name: str,
        globals: dict[str, Any] | None = None,
        locals: dict[str, Any] | None = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> ModuleType:
        module: ModuleType = builtins.__import__(name, globals, locals, fromlist or (), level)
        return self._view(module)

    def attribute(self, module: ModuleType, name: str) -> Any:
        namespace = self.namespaces.get(module.__name__) if self._open else None
        if namespace is None:
            value = getattr(module, name)
        elif name == "__dict__":
            return namespace
        elif name in namespace:
            value = namespace[name]
        elif name in vars(module):  # gone from the new source
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        else:
            value = getattr(module, name)
        return self._view(value) if isinstance(value, ModuleType) else value

    def close(self, keep_imported: bool) -> None:
        """Views show the live modules from now on; modules imported for an abort go again."""
        self._open = False
        for name in self.imported:
            module = sys.modules.get(name)
            if module is None:
                continue
            if keep_imported:
                module.__dict__["__builtins__"] = vars(builtins)
                continue
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
                delattr(sys.modules[parent], child)


class StagedModule(ModuleType):
    """A module as it will be after the commit."""

    def __init__(self, module: ModuleType, stage: Stage) -> None:
        super().__init__(module.__name__)
        object.__setattr__(self, "__reload_module__", module)
        object.__setattr__(self, "__reload_stage__", stage)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__reload_module__", "__reload_stage__"):
            return object.__getattribute__(self, name)
        stage: Stage = object.__getattribute__(self, "__reload_stage__")
        return stage.attribute(object.__getattribute__(self, "__reload_module__"), name)


class _Snapshot:
    def __init__(self, container: Any) -> None:
        self._container = container
        self._before: Any = container.copy()

    def take_out(self) -> HeldBack | None:
        """Put the container back as it was; the result can repeat what happened to it."""
        container, before = self._container, self._before
        if isinstance(container, dict):
            gone = [key for key in before if key not in container]
            put = {
                key: value
                for key, value in container.items()
                if before.get(key, MISSING) is not value
            }
            for key in put:
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]
            container.update({key: before[key] for key in gone})
            return HeldBack(container, put, gone) if put or gone else None
        if isinstance(container, set):
            added, removed = container - before, before - container
            container -= added
            container |= removed
            return HeldBack(container, added, removed) if added or removed else None
        if len(container) == len(before) and all(map(_is, container, before)):
            return None
        after = container[:]
        container[:] = before
        if len(after) > len(before) and all(map(_is, after, before)):
            return HeldBack(container, after[len(before) :], [])
        return HeldBack(container, after, before)


class HeldBack:
    """Something that staged code did to a live container."""

    def __init__(self, container: Any, put: Any, removed: Any) -> None:
        self.container, self.put, self._removed = container, put, removed

    def flip(self, live_of: Any) -> Action:
        """Repeats it on the container, with live objects instead of their staged twins."""

        def do() -> Any:
            container = self.container
            before = container.copy()
            if isinstance(container, dict):
                for key in self._removed:
                    container.pop(key, None)
                for key, value in self.put.items():
                    container[live_of(key)] = live_of(value)
            elif isinstance(container, set):
                container -= self._removed
                container |= {live_of(value) for value in self.put}
            elif self._removed:
                container[:] = [live_of(value) for value in self.put]
            else:
                # Registering again what is registered already adds nothing.
                for value in self.put:
                    if live_of(value) is value or not any(live_of(value) is c for c in container):
                        container.append(live_of(value))
            return lambda: _refill(container, before)

        return Action(do)


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
    elif list(container) != list(before) or isinstance(container, dict):
        container.clear()
        container.update(before)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _containers(modules: Iterable[tuple[str, ModuleType]]) -> Iterable[Any]:
    found: dict[int, Any] = {}
    for name, module in modules:
        for key, value in list(vars(module).items()):
            inside = [value]
            if isinstance(value, type) and value.__module__ == name:
                inside += list(value.__dict__.values())
            if key == "__builtins__":
                continue
            for container in inside:
                if type(container) in _CONTAINERS and len(container) <= _TOO_BIG_TO_HOLD_BACK:
                    found[id(container)] = container
    return found.values()


def _num_collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
