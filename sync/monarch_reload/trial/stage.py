"""Runs the statements of a plan beside the live modules, which stay as they are.

Each module gets a namespace laid over its own: a copy in which new values replace old ones. Code
that runs there sees other staged modules through views, whether it imports them or refers to them
already. Entries that the statements add to registries of ours (module-level lists, dicts and sets)
are removed again and kept for the commit (see `side_effects`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from monarch_reload.errors import ReloadError
from monarch_reload.kinds import is_a, own_names
from monarch_reload.live.all_objects import held_objects
from monarch_reload.live.overloads import Overloads
from monarch_reload.live.patch import parts_of
from monarch_reload.live.staged_module import StagedModule
from monarch_reload.live.targets import Target
from monarch_reload.plan.dirty_marks import DirtyMark, EditPlan, ModulePlan
from monarch_reload.plan.graph import Origin
from monarch_reload.plan.stars import bring
from monarch_reload.source.source import ImportHook, ModuleSource
from monarch_reload.source.splice import as_imported, names_imported
from monarch_reload.source.statements import Statement
from monarch_reload.thread_switches import longer_turns
from monarch_reload.trial.budget import Budget
from monarch_reload.trial.container_copies import ContainerCopies
from monarch_reload.trial.held_attributes import HeldAttribute
from monarch_reload.trial.held_back import HeldBack
from monarch_reload.trial.outside import Outside
from monarch_reload.trial.side_effects import SideEffects
from monarch_reload.trial.stand_ins import StandIns, twins_of
from monarch_reload.undo_log import MISSING, Item


class TrialStage:
    """Runs a plan, and keeps the results: the namespaces, and every object that was made in the
    run."""

    def __init__(self, hook: ImportHook, budget: Budget) -> None:
        self._hook = hook
        self._budget = budget
        #: What staged code sees as its globals, by module: the live names with new values.
        self.namespaces: dict[str, dict[str, Any]] = {}
        #: Every object that was made meanwhile and can hold others, by id.
        self.made: dict[int, Any] = {}
        #: Whether `made` has no older objects, which it has if the collector ran.
        self.made_is_exact = False
        #: What each definition made, by module and index of the statement.
        self.defined: dict[tuple[str, int], Any] = {}
        #: Names that staged code assigned as attributes of a module, by module.
        self.assigned: dict[str, set[str]] = {}
        #: Names that a statement may bind and did not, as in a branch that was not taken.
        self.left_alone: dict[tuple[str, int], set[str]] = {}
        #: The result of `as_imported`, by path.
        self._imported: dict[str, list[ast.stmt]] = {}
        self._plan = EditPlan({})
        #: Shows live objects to staged code as instances of staged classes.
        self.stand_ins = StandIns(self.namespaces)
        #: Assignments to live objects, taken back and kept for the commit.
        self.stores: list[Target | HeldAttribute] = []
        #: Modules that staged code imported.
        self.imported: list[str] = []
        #: Changes of registries, taken back and kept for the commit.
        self.held_back: list[HeldBack] = []
        #: Effects on loggers, signals, the exit and threads.
        self.outside = Outside()
        self.overloads = Overloads()
        #: The builtins of staged code.
        self.builtins = {**vars(builtins), "__import__": self._import, **self.stand_ins.checks}
        #: Whether the trial goes on: then staged code sees staged modules.
        self._is_open = True
        #: Whether a commit took the results.
        self.was_taken = False
        self._copies = ContainerCopies({}, set(), self.stand_ins.of)

    def run(
        self,
        plan: EditPlan,
        sources: dict[str, ModuleSource],
        ours: Iterable[tuple[str, ModuleType]],
    ) -> None:
        """Run a plan. ``sources`` are the new sources of modules. Raises ReloadError for an
        exception of the new code; call `close` then.
        """
        self._plan = plan
        involved = {name: p for name, p in plan.modules.items() if p.is_staged}
        for name, module_plan in involved.items():
            namespace = dict(vars(sys.modules[name]))
            for gone in module_plan.edit.gone:
                namespace.pop(gone, None)
            self.namespaces[name] = namespace
            self.stand_ins.kept += [
                (name, key)
                for key, mark in module_plan.marks.items()
                if mark in (DirtyMark.KEPT, DirtyMark.INSTANCE)
            ]
        names = {name: p.shadowed for name, p in involved.items() if p.shadowed}
        statements = [s for p in involved.values() for s in p.edit.new] if names else []
        late = {part for s in statements for name in s.names.deferred for part in name.split(".")}
        self._copies = ContainerCopies(names, late, self.stand_ins.of)
        effects = SideEffects(ours, self.outside.loggers)
        self._hook.builtins, self._hook.imported = self.builtins, self.imported
        self._hook.thread = threading.get_ident()
        import_module = importlib.import_module
        importlib.import_module = self._import_module(import_module)
        collecting = gc.isenabled()
        gc.disable()
        gc.collect(0)
        collections = _num_collections()
        shown = {source.path: linecache.cache.pop(source.path, None) for source in sources.values()}
        try:
            for source in sources.values():
                # For decorators that read the source; the file need not hold it yet.
                lines = source.text.decode("utf-8", "replace").splitlines(keepends=True)
                linecache.cache[source.path] = (len(source.text), None, lines, source.path)
            held_back = self.overloads.held_back(involved)
            with held_back, self.outside.watched(), longer_turns():
                for name, module_plan in involved.items():
                    self._run_module(name, module_plan, sources[name], effects)
        finally:
            effects.no_more_statements()
            importlib.import_module = import_module
            for path, entry in shown.items():
                linecache.cache.pop(path, None)
                if entry is not None:
                    linecache.cache[path] = entry
            # The objects made meanwhile are the young generation, unless a collection ran.
            self.made_is_exact = collections == _num_collections()
            young = 0 if self.made_is_exact else None
            self.made = held_objects(young, self.namespaces.values())
            if collecting:
                gc.enable()
            self._hook.builtins = None
            self.stand_ins.pairs += self._copies.cast
            with longer_turns():
                self.stores, self.held_back = effects.take_out(self._is_definition)
        for namespace in self.namespaces.values():
            for name, value in dict(namespace).items():
                if type(value) is StagedModule:
                    namespace[name] = value.__reload_module__

    def _run_module(
        self, name: str, plan: ModulePlan, source: ModuleSource, effects: SideEffects
    ) -> None:
        module = sys.modules[name]
        namespace = self.namespaces[name]
        namespace["__builtins__"] = self.builtins
        for key, value in dict(namespace).items():
            if issubclass(type(value), ModuleType):
                namespace[key] = self._view(value)
        flags = source.flags
        for index in sorted(plan.run | plan.twin):
            self._budget.check()
            statement = plan.edit.new[index]
            run = self._runner(plan, index, source.path, flags)
            targets = list(effects.targets_of(statement.node, namespace))
            later = _take_later(namespace, plan.edit.new, index) if statement.reads_whole else {}
            bound_to = {bound: namespace.get(bound, MISSING) for bound in statement.binds}
            try:
                with contextlib.nullcontext() if statement.is_inert else effects.looking(targets):
                    live = vars(module).get(statement.name or "")
                    with self._copies.in_place(self.namespaces, statement):
                        self._execute(run, namespace, live, name, effects)
            except (Exception, SystemExit) as error:
                texts = {source.path: source.text}
                raise ReloadError.of_exception(error, "run", source.path, texts) from error
            if not (statement.is_definition or statement.is_import):
                self.left_alone[name, index] = {
                    bound
                    for bound, value in bound_to.items()
                    if namespace.get(bound, MISSING) is value
                }
            namespace.update({key: later[key] for key in later.keys() - namespace.keys()})
            if statement.name is not None:
                live, value = vars(module).get(statement.name), namespace.get(statement.name)
                self.defined[name, index] = value
                self.stand_ins.take_over(plan, index, live, value)
                self._copies.twins.update(twins_of(name, live, value))
            for bound in statement.binds if statement.name is None else ():
                before, after = vars(module).get(bound), namespace.get(bound)
                if type(before) is FunctionType and type(after) is FunctionType:
                    self._copies.twins[id(before)] = after

    def _runner(
        self, plan: ModulePlan, index: int, path: str, flags: int
    ) -> Callable[[dict[str, Any]], None]:
        """Return a function that runs the statement in a namespace."""
        statement = plan.edit.new[index]
        node = statement.placed
        if statement.is_star:
            assert isinstance(node, ast.ImportFrom)
            name, level = node.module or "", node.level

            def run(namespace: dict[str, Any]) -> None:
                owner = self._import(name, namespace, None, ("*",), level)
                bring(plan.edit.new, index, owner, namespace)

            return run
        if index in plan.twin and not (statement.is_import or statement.is_definition):
            taken = {name: plan.edit.origins.get(name) for name in statement.binds}
            if any(taken.values()):
                return functools.partial(self._take, taken)
        # So that unedited functions are compiled to the same code as before.
        others: list[ast.stmt] = []
        if statement.is_definition:
            if path not in self._imported:
                self._imported[path] = as_imported(names_imported(plan.edit.new))
            others = self._imported[path]
        module = ast.Module([node, *others], [])
        return functools.partial(
            exec, compile(module, path, "exec", flags=flags, dont_inherit=True)
        )

    def _take(self, names: Mapping[str, Origin | None], namespace: dict[str, Any]) -> None:
        """Do the imports of an ``if`` or ``try`` statement, without running its other parts."""
        for name, origin in names.items():
            if origin is not None and origin[1] is not None:
                owner = self._import(origin[0], namespace, None, (origin[1],))
                namespace[name] = getattr(owner, origin[1])

    def _execute(
        self,
        run: Callable[[dict[str, Any]], None],
        namespace: dict[str, Any],
        live: Any,
        module: str,
        effects: SideEffects,
    ) -> None:
        """Run a statement, which may define a live object again.

        A registry may refuse a name that it already has. If the statement raises, it therefore runs
        once more while entries are out of the registries: those of the object ``live``, and those
        of definitions that have left their modules, because an import may register them from
        elsewhere.
        """
        try:
            with self._budget.not_counting():
                run(namespace)
        except Exception:
            replaced = [(live, module), *self._gone()]
            ids = {id(part) for value, name in replaced for part in parts_of(value, name)}
            withdrawals = effects.withdraw(ids)
            if not withdrawals:
                raise
            run(namespace)
            for withdrawn in withdrawals:
                withdrawn.put_back()

    def _gone(self) -> Iterator[tuple[Any, str]]:
        """Yield (definition, module name) for each live definition that the edit removes from its
        module.
        """
        for name, plan in self._plan.modules.items():
            live = vars(sys.modules[name])
            before, after = plan.edit.definitions
            yield from ((live.get(gone), name) for gone in before - after)

    def _is_definition(self, entry: Any) -> bool:
        """Return whether an entry is or contains an object of the trial: a callable that was made
        in the trial, or an instance of a class that was made in it.
        """
        inside = entry if type(entry) in (list, set, tuple) else (entry,)
        return any(
            id(type(part)) in self.made or (id(part) in self.made and callable(part))
            for part in inside
        )

    def _view(self, module: ModuleType) -> ModuleType:
        name = own_names(module).get("__name__", "")
        staged = name in self.namespaces or any(n.startswith(f"{name}.") for n in self.namespaces)
        if type(module) is StagedModule or not staged or not self._is_open:
            return module
        return StagedModule(module, self)

    def _import(self, name: str, *arguments: Any, **keywords: Any) -> ModuleType:
        """Import a module for staged code; return the staged view of it. The arguments are those of
        ``__import__``."""
        return self._view(builtins.__import__(name, *arguments, **keywords))

    def _import_module(self, real: Callable[..., ModuleType]) -> Callable[..., ModuleType]:
        """Return an `import_module` that returns staged views to this thread, and real modules to
        others."""
        thread = threading.get_ident()

        def import_module(name: str, package: str | None = None) -> ModuleType:
            module = real(name, package)
            return self._view(module) if threading.get_ident() == thread else module

        return import_module

    def attribute(self, module: ModuleType, name: str) -> Any:
        namespace = self.namespaces.get(module.__name__) if self._is_open else None
        if namespace is None:
            value = getattr(module, name)
        elif name == "__dict__":
            return namespace
        elif name in namespace:
            value = namespace[name]
        elif name in vars(module):  # gone from the new source
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        elif "__getattr__" in namespace and not hasattr(ModuleType, name):
            value = namespace["__getattr__"](name)
        else:
            value = getattr(module, name)
        return self._view(value) if is_a(value, ModuleType) else value

    def assign(self, module: ModuleType, name: str, value: Any) -> None:
        namespace = self.namespaces.get(module.__name__) if self._is_open else None
        if namespace is not None:
            self.assigned.setdefault(module.__name__, set()).add(name)
            Item(namespace, name, value).apply()
        elif value is MISSING:
            delattr(module, name)
        else:
            setattr(module, name, value)

    def let_go(self) -> None:
        """Drop all references to objects of the trial."""
        for name in self.namespaces:
            self.namespaces[name] = {}  # a new dict: functions may still use the old one
        self.made.clear()
        self.defined.clear()
        self.stores.clear()
        self.held_back.clear()
        self.stand_ins.let_go()
        self._copies = ContainerCopies({}, set(), self.stand_ins.of)
        self._plan = EditPlan({})

    def close(self, keep_imported: bool) -> None:
        """End the trial. From now on the views show the live modules. Unless ``keep_imported``,
        modules that were imported for the first time by staged code are unloaded.
        """
        self._is_open = False
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


def _take_later(
    namespace: dict[str, Any], statements: Sequence[Statement], index: int
) -> dict[str, Any]:
    """Remove from ``namespace`` the names that only the statement ``index`` and later statements
    bind, and return them with their values. A statement that reads all names then does not find
    them yet.
    """
    so_far = {name for statement in statements[:index] for name in statement.binds}
    below = {name for statement in statements[index:] for name in statement.binds} - so_far
    return {name: namespace.pop(name) for name in below & namespace.keys()}


def _num_collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
