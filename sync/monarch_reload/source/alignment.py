"""Which old statement each statement of an edited file comes from. Pure."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import msgspec

from monarch_reload.source.names import Use
from monarch_reload.source.spelling import FunctionNode, dotted, from_import, imported_by, root_of
from monarch_reload.source.statements import Statement


class Alignment(msgspec.Struct, frozen=True, dict=True):
    """For each new statement, by index, the index of the old statement that it comes from; three
    dicts tell apart how they differ.

    ``same``: nothing in it changed. ``narrow``: only function bodies changed. ``renewed``: a
    changed definition whose name was defined before.
    """

    same: dict[int, int]
    narrow: dict[int, int]
    renewed: dict[int, int]  # changed definitions that existed under the same name

    def source_of(self, index: int) -> int | None:
        for pairs in (self.same, self.narrow, self.renewed):
            if index in pairs:
                return pairs[index]
        return None

    @cached_property
    def inherited(self) -> frozenset[int]:
        """The indexes of the old statements that continue in the new source: a new statement comes
        from each.
        """
        return frozenset(
            old for pairs in (self.same, self.narrow, self.renewed) for old in pairs.values()
        )


def align(old: Sequence[Statement], new: Sequence[Statement]) -> Alignment:
    same: dict[int, int] = {}
    narrow: dict[int, int] = {}
    renewed: dict[int, int] = {}
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for index in reversed(range(len(old))):
        by_text[old[index].text].append(index)
    for index, statement in enumerate(new):
        if by_text.get(statement.text):
            same[index] = by_text[statement.text].pop()
            statement.take_analysis(old[same[index]])
    taken = set(same.values())
    unmatched = _Unmatched([(i, statement) for i, statement in enumerate(old) if i not in taken])
    for index, statement in enumerate(new):
        if index in same:
            continue
        if statement.name is None:
            if (candidate := unmatched.take(_Unmatched.by_dump, statement)) is not None:
                same[index] = candidate
            elif (candidate := unmatched.take(_Unmatched.by_frame, statement)) is not None:
                narrow[index] = candidate
    # By decorators first, so that an implementation is not matched with one of its `@overload`s.
    for like in (_Unmatched.by_decorators, _Unmatched.by_name):
        for index, statement in enumerate(new):
            if statement.name is None or index in same or index in narrow or index in renewed:
                continue
            if (candidate := unmatched.take(like, statement)) is not None:
                other = old[candidate]
                is_narrow = differ_in_bodies_only(other, statement)
                is_narrow = is_narrow and not decorators_may_differ(other, statement)
                (narrow if is_narrow else renewed)[index] = candidate
    return Alignment(same, narrow, renewed)


class _Unmatched:
    """Old statements that are not matched with a new statement yet. They are indexed by keys, so
    that a similar statement is found fast.
    """

    def __init__(self, statements: Sequence[tuple[int, Statement]]) -> None:
        self._taken: set[int] = set()
        self._statements = statements
        self._by_likeness: dict[Callable[[Statement], Hashable], dict[Hashable, list[int]]] = {}

    def take(self, like: Callable[[Statement], Hashable], statement: Statement) -> int | None:
        """Return the index of the first unmatched old statement that has the same key as
        ``statement``, and count it as matched from now on. ``like`` computes the key.

        None if there is no such statement, or if the key of ``statement`` is None.
        """
        if like not in self._by_likeness:
            indexes: defaultdict[Hashable, list[int]] = defaultdict(list)
            for index, other in reversed(self._statements):
                indexes[like(other)].append(index)
            self._by_likeness[like] = indexes
        key = like(statement)
        candidates = self._by_likeness[like].get(key) if key is not None else None
        while candidates:
            index = candidates.pop()
            if index not in self._taken:
                self._taken.add(index)
                return index
        return None

    @staticmethod
    def by_name(statement: Statement) -> Hashable:
        return None if statement.name is None else (type(statement.node), statement.name)

    @staticmethod
    def by_decorators(statement: Statement) -> Hashable:
        decorators = getattr(statement.node, "decorator_list", ())
        name = _Unmatched.by_name(statement)
        return name and (name, *map(ast.dump, decorators))

    @staticmethod
    def by_dump(statement: Statement) -> Hashable:
        return statement.dump if statement.name is None else None

    @staticmethod
    def by_frame(statement: Statement) -> Hashable:
        return (statement.frame or None) if statement.name is None else None


def differ_in_bodies_only(old: Statement, new: Statement) -> bool:
    """Return whether two statements differ in nothing but function bodies, so that live functions
    can take the new code without running the statement."""
    if old.text == new.text:
        return True
    if type(old.node) is not type(new.node):
        return False
    if old.is_function:
        return old.name == new.name and _header(old.node) == _header(new.node)
    if not old.is_class:
        return old.dump == new.dump
    return (
        _header(old.node) == _header(new.node)
        and len(old.body) == len(new.body)
        and all(map(differ_in_bodies_only, old.body, new.body))
        and not _calls_what_changed(old, new)
    )


def decorators_may_differ(old: Statement, new: Statement) -> bool:
    """Return whether decorators may act differently after an edit, because they read the signature
    of the function.

    Pass only statements that differ in nothing but function bodies.
    """
    if old.text == new.text:
        return False
    if old.is_class:
        return any(map(decorators_may_differ, old.body, new.body))
    if not isinstance(old.node, FunctionNode) or not isinstance(new.node, FunctionNode):
        return False
    names = {dotted(decorator) or "" for decorator in new.node.decorator_list}
    plain = {name for name in names if name in _PLAIN_DECORATORS or name.endswith(_OF_PROPERTIES)}
    return names != plain and ast.dump(old.node.args) != ast.dump(new.node.args)


_PLAIN_DECORATORS = frozenset({"property", "staticmethod", "classmethod"})
_CALLS = frozenset({Use.CALLED, Use.USED, Use.REGISTERS})
_OF_PROPERTIES = (".setter", ".getter", ".deleter")


def _calls_what_changed(old: Statement, new: Statement) -> bool:
    """Return whether a class body calls a function of its own that was edited."""
    edited = {a.name for a, b in zip(old.body, new.body, strict=True) if a.text != b.text}
    return any(
        root_of(name) in edited and use in _CALLS and not name.endswith(_OF_PROPERTIES)
        for statement in new.body
        for name, use in statement.names.eager
    )


def moved_lines(old: Statement, new: Statement) -> Iterator[tuple[range, int, str | None]]:
    """Yield (old lines, distance, name) for a statement whose old and new versions differ at most
    in function bodies.

    The functions that begin on these old lines are ``distance`` lines further down in the new file.
    If ``name`` is given, this holds only for the function of that name; None means all of them.
    """
    if old.text == new.text or not old.is_definition:
        yield range(old.first, old.last + 1), new.first - old.first, None
    elif old.is_function:
        yield range(old.first, old.first + 1), new.first - old.first, old.name
    else:
        yield range(old.first, old.first + 1), new.first - old.first, old.name
        for before, after in zip(old.body, new.body, strict=True):
            yield from moved_lines(before, after)


def changed_functions(old: Statement, new: Statement) -> Iterator[tuple[Statement, Statement]]:
    """Yield every function, old and new, whose body a narrow edit changed."""
    if old.text == new.text:
        return
    if old.is_class:
        for before, after in zip(old.body, new.body, strict=True):
            yield from changed_functions(before, after)
    elif old.is_function and old.dump != new.dump:
        yield old, new


def kept_class_values(old: Statement, new: Statement, changed: AbstractSet[str]) -> set[str]:
    """Return the names that a class body binds and that keep their values after the edit, without
    definitions such as methods.

    `changed` are the dotted names from outside the class whose values have changed.
    """
    alignment = align(old.body, new.body)
    kept: set[str] = set()
    fresh: set[str] = set()  # bound to something else in this body
    edited: set[str] = set()  # definitions of this body that behave differently
    imported: dict[str, str] = {}
    for index, statement in enumerate(new.body):
        imports = imported_by([statement.node])
        imported.update(imports)
        follows = not changed.isdisjoint(imports.values()) or any(
            from_import(name, imported) in changed
            or root_of(name) in fresh
            or (root_of(name) in edited and use in _CALLS)
            for name, use in statement.names.eager
        )
        if statement.is_definition:
            if follows or index not in alignment.same:
                edited |= statement.binds
        elif follows or index not in alignment.same:
            fresh |= statement.binds
        else:
            kept |= statement.binds - fresh
    return kept


def _header(node: ast.stmt) -> tuple[str, ...]:
    """Return all parts of a definition but its body, to compare. The docstring is included, as it
    is a value."""
    assert isinstance(node, (*FunctionNode, ast.ClassDef))
    parts: list[ast.AST] = [*node.decorator_list, *getattr(node, "type_params", ())]
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *node.keywords]
        return tuple(map(ast.dump, parts))
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
    annotated = {a.arg: ast.dump(a.annotation) for a in arguments if a.annotation is not None}
    keyword_only = {
        argument.arg: ast.dump(default)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if default is not None
    }
    parts += [*node.args.defaults, *([node.returns] if node.returns else [])]
    # The counts separate decorators, defaults and the annotation in the list of parts.
    counts = (len(node.decorator_list), len(node.args.defaults), node.returns is not None)
    docstring = ast.get_docstring(node, clean=False)
    return (repr(counts), repr(annotated), repr(keyword_only), repr(docstring)) + tuple(
        map(ast.dump, parts)
    )
