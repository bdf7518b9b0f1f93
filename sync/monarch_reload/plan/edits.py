"""From sources to edits: each module's old and new code, and the kinds of its names' values."""

from __future__ import annotations

import ast
import enum
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, cast

from msgspec.structs import replace

from monarch_reload.kinds import is_a, is_heap_type, own_names
from monarch_reload.live.lambdas import Lambdas
from monarch_reload.live.live_functions import Functions, Place
from monarch_reload.live.patch import FunctionPatch, is_compiled, parts_of, same_behaviour
from monarch_reload.live.tables import Tables
from monarch_reload.plan.dirty_marks import ModulePlan
from monarch_reload.plan.graph import ModuleEdit, NameKind, imports_of
from monarch_reload.plan.removed_assignments import as_if
from monarch_reload.plan.stars import Exports
from monarch_reload.source.alignment import Alignment, align, changed_functions, moved_lines
from monarch_reload.source.guards import executed
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import Attribute


class LiveModule:
    """A loaded module with the functions and classes that its file defined, by place."""

    def __init__(
        self,
        name: str,
        module: ModuleType,
        source: ModuleSource,
        living: Callable[[], Functions],
    ) -> None:
        """`living` returns all functions of the process; it is called only if they must be
        searched."""
        self._living = living
        self.name = name
        self.module = module
        self.source = source
        self.functions: defaultdict[tuple[str, int], list[FunctionType]] = defaultdict(list)
        self.classes: list[type] = []
        self.lambdas: dict[int, list[Attribute]] = {}  # by the statement of an edit
        seen: set[int] = set()
        for key, value in dict(vars(module)).items():
            if key == "__builtins__":
                continue
            for part in parts_of(value, name, seen):
                if is_a(part, FunctionType):
                    code = part.__code__
                    if code.co_filename == source.path:
                        self.functions[code.co_name, code.co_firstlineno].append(part)
                elif is_a(part, type):
                    self.classes.append(part)
        self._reached = frozenset(self.functions)  # by names

    @cached_property
    def _at_top_level(self) -> Mapping[Place, list[FunctionType]]:
        return self._living().at_top_level(vars(self.module))

    def functions_of(self, definition: Statement) -> list[FunctionType]:
        """Return the live functions that a definition of the running source made."""
        assert definition.name is not None
        place = definition.name, definition.first
        if place not in self.functions and (hidden := self.hidden_of(definition)):
            self.functions[place] = hidden
        return self.functions.get(place, [])

    def hidden_of(self, definition: Statement) -> list[FunctionType]:
        """Return the live functions that a definition made and that its name is not bound to.

        A decorator may have registered the function and returned something else. Or a later `def _`
        is bound to the name.
        """
        place = definition.name or "", definition.first
        if not (definition.is_decorated and definition.is_function) or place in self._reached:
            return []
        if is_compiled(vars(self.module).get(place[0])):
            return []
        code = self.source.codes.get(place)
        functions = self._at_top_level.get(place, ())
        return [f for f in functions if code and same_behaviour(f.__code__, code)]

    def wrappers_of(self, function: FunctionType) -> Sequence[FunctionType]:
        """Return the functions that close over `function`. They are not searched for if `function`
        can be found by its name; then the result is empty.
        """
        place = function.__code__.co_name, function.__code__.co_firstlineno
        return () if place in self._reached else self._living().wrappers_of(function)

    def runs_its_source(self) -> bool:
        """Whether the live functions match the source that the module is taken to run. False if the
        file was edited between the import and the reloader's first look at it."""
        try:
            codes = self.source.codes
        except (SyntaxError, ValueError):
            return False
        return all(
            place in codes and same_behaviour(function.__code__, codes[place])
            for place, functions in self.functions.items()
            for function in functions
            if function.__code__.co_name != "<lambda>" and "<locals>" not in function.__qualname__
        )


def unedited(
    name: str,
    module: ModuleType,
    source: ModuleSource,
    exports: Exports,
    anew: Collection[tuple[str, str]] = (),
) -> ModuleEdit:
    """Return the edit of a module whose own source did not change, for a plan in which other
    modules change.

    ``anew`` are names that must be made again, each as (class or "" for the module itself, name).
    """
    new = executed(source.statements, vars(module))
    old = as_if(new, anew)
    alignment = align(old, new) if anew else Alignment({i: i for i in range(len(old))}, {}, {})
    if b"import *" in source.text:
        package = _package(module)
        old, new = exports.split_before(old, package), exports.split_after(new, package)
        alignment = align(old, new)
    return replace(_edit(name, module, old, new, alignment), exports_others=exports.differ(name))


def edited(
    live: LiveModule, new: ModuleSource, exports: Exports, anew: Collection[tuple[str, str]] = ()
) -> ModuleEdit:
    is_known = live.source.witnessed or live.runs_its_source()
    package = _package(live.module)
    namespace = vars(live.module)
    old = as_if(executed(live.source.statements, namespace), anew) if is_known else ()
    statements = executed(new.statements, namespace)
    # Found by the text: the names of unchanged statements need no analysis.
    if b"import *" in live.source.text or b"import *" in new.text:
        old = exports.split_before(old, package)
        statements = exports.split_after(statements, package)
    alignment = align(old, statements)
    lambdas = Lambdas(live.source)
    for index, origin in list(alignment.narrow.items()):
        before, after = old[origin], statements[index]
        if not after.is_definition:
            flips = lambdas.new_code_for(before, after)
            if flips is None:
                del alignment.narrow[index]
            else:
                live.lambdas[index] = flips
        elif not _is_reachable(live, new, before, after):
            alignment.renewed[index] = alignment.narrow.pop(index)
    edit = _edit(live.name, live.module, old, statements, alignment)
    differs = b"__all__" in new.text and exports.differ(live.name)
    return replace(edit, exports_others=differs)


def _package(module: ModuleType) -> str:
    return own_names(module).get("__package__") or ""


def _is_reachable(live: LiveModule, new: ModuleSource, before: Statement, after: Statement) -> bool:
    """Return whether all edited functions of a statement were found in the process and can take
    their new code.
    """
    for old, edit in changed_functions(before, after):
        assert old.name is not None
        place = old.name, old.first
        functions = live.functions_of(old) if old is before else live.functions.get(place)
        code = new.codes.get((old.name, edit.first))
        if not functions or code is None:
            return False
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            return False
    return True


def _edit(
    name: str,
    module: ModuleType,
    old: tuple[Statement, ...],
    new: tuple[Statement, ...],
    alignment: Alignment,
) -> ModuleEdit:
    live = vars(module)
    return ModuleEdit(
        name=name,
        package=_package(module),
        old=old,
        new=new,
        alignment=alignment,
        kinds={key: kind_of(value) for key, value in dict(live).items()},
        types={key: types for key, value in dict(live).items() if (types := _types(value))},
        keep=frozenset(_kept_names(new) & live.keys()),
        is_script=live.get("__name__") == "__main__",
        is_program=_is_program(live, old),
        compiled=frozenset(key for key, value in dict(live).items() if is_compiled(value)),
        modules={k: v.__name__ for k, v in dict(live).items() if type(v) is ModuleType},
        origins=dict(_origins(new, module)),
        tables=Tables(live),
    )


def _origins(
    statements: Iterable[Statement], module: ModuleType
) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Yield (name, (module, name there)) for the names that compound statements, such as ``try``,
    import.

    If several imports may bind a name, the one that brought its present value counts.
    """
    live, package = vars(module), _package(module)
    for statement in statements:
        if statement.is_import or not statement.imports:
            continue
        for name, (owner, inner) in imports_of(statement, package):
            loaded = sys.modules.get(owner)
            if loaded is not None and inner is not None:
                loaded = own_names(loaded).get(inner)
            if loaded is not None and loaded is live.get(name):
                yield name, (owner, inner)


def _is_program(namespace: dict[str, Any], statements: Iterable[Statement]) -> bool:
    """Return whether the top level of a module is a program, such as a training script.

    It is, if a thread is running the top level outside of its main guard. It also is, if the module
    is the script ``__main__`` and has no main guard.
    """
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_globals is namespace and at.f_code.co_name == "<module>":
                line = at.f_lineno
                return not any(s.is_main_guard and s.first <= line <= s.last for s in statements)
            at = at.f_back
    is_script = namespace.get("__name__") == "__main__"
    return is_script and not any(statement.is_main_guard for statement in statements)


def kind_of(value: object) -> NameKind:
    # Not isinstance, which reads `__class__`: a lazy object would load itself.
    if issubclass(type(value), FunctionType):
        return NameKind.FUNCTION
    if not issubclass(type(value), type):
        if _is_data(value):
            return NameKind.DATA
        return NameKind.ROWS if _are_rows(value) else NameKind.OTHER
    return NameKind.METACLASS if issubclass(cast("type", value), type) else NameKind.CLASS


def _is_data(value: object) -> bool:
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return True
    if kind in (tuple, frozenset) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return all(map(_is_data, cast("tuple[object, ...]", value)))
    if getattr(kind.__dict__.get("__dataclass_params__"), "frozen", False):
        held = own_names(value)  # as a named tuple, it has its values and nothing else
        return held.keys() == kind.__dataclass_fields__.keys() and all(  # type: ignore[attr-defined]
            map(_is_data, held.values())
        )
    return kind in _DATA


def _are_rows(value: object) -> bool:
    if type(value) not in (list, dict, set):
        return False
    rows = cast("Collection[object]", value)
    if type(value) is dict:
        rows = cast("dict[object, object]", value).values()
    # Copied in one step: other threads may change it meanwhile.
    return len(rows) <= _MOST_ROWS and all(map(_is_data, tuple(rows)))


_MOST_ROWS = 256
_DATA = (int, float, complex, bool, str, bytes, type(None), range, slice)


def _types(value: object) -> tuple[tuple[str, str], ...]:
    """Return the classes of an instance and their bases, as (module, name), without builtin
    classes.
    """
    cls = type(value)
    if not is_heap_type(cls) or issubclass(cls, (type, ModuleType, FunctionType)):
        return ()
    return tuple((base.__module__, base.__qualname__) for base in cls.__mro__[:-1])


def _kept_names(statements: Iterable[Statement]) -> set[str]:
    """Return the names in `__reload_keep__ = ("name", ...)` of the new source."""
    for statement in statements:
        if "__reload_keep__" in statement.binds and isinstance(statement.node, ast.Assign):
            try:
                return set(ast.literal_eval(statement.node.value))
            except (ValueError, TypeError):
                return set()
    return set()


def move_code(live: LiveModule, new: ModuleSource, plan: ModulePlan, patch: FunctionPatch) -> None:
    """Give new code to functions whose statements do not run: edited bodies, and functions that
    only moved to other lines."""
    edit = plan.edit
    starts: list[tuple[int, int, int, str | None]] = []
    for pairs in (edit.alignment.same, edit.alignment.narrow):
        for index, origin in pairs.items():
            before, after = edit.old[origin], edit.new[index]
            is_there = before.first == after.first and live.source.path == new.path
            if index in plan.run or (before.text == after.text and is_there):
                continue
            for lines, distance, name in moved_lines(before, after):
                starts.append((lines.start, lines.stop, distance, name))
    starts.sort(key=lambda entry: entry[:2])
    first_lines = [entry[0] for entry in starts]

    def distance_of(name: str, line: int) -> tuple[int, bool] | None:
        """Return how a function with this name and old first line moves: (number of lines down,
        whether its code may differ). None if it stays as it is.
        """
        position = bisect_right(first_lines, line) - 1
        if position < 0:
            return None
        _, stop, distance, only = starts[position]
        return (distance, only is not None) if line < stop and only in (None, name) else None

    for (name, line), functions in live.functions.items():
        moved = distance_of(name, line)
        code: CodeType | None = new.codes.get((name, line + moved[0])) if moved else None
        if moved is None or code is None:
            continue
        for function in functions:
            old = function.__code__
            alike = same_behaviour(old, code)
            if old.co_freevars != code.co_freevars or not (alike or moved[1]):
                continue
            patch.flips.append(Attribute(function, "__code__", code))
            if not alike:
                patch.patched.append(function)
    for index, flips in live.lambdas.items():
        if index not in plan.run:
            patch.flips += flips
            patch.patched += [flip.owner for flip in flips]
    for cls in live.classes:
        line = cls.__dict__.get("__firstlineno__", 0)
        moved = distance_of(cls.__name__, line) if line else None
        if moved and moved[0]:
            patch.flips.append(Attribute(cls, "__firstlineno__", line + moved[0]))
