"""Functions that were made inside functions take new code, wherever there are references to them.

No name leads to a closure, a wrapper, a lambda or a method of a local class. They are recognised by
the place of their code in the source: its name and first line. Each switch gives all of them the
code of the new source, even if only their lines moved, so that the next switch finds them by their
place again. A function keeps its old code if it cannot take the new code (which may need other
values from its maker), or if its source is gone. Its place is remembered, and a later edit that it
can take is applied.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import difflib
import gc
import inspect
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any

import msgspec

from monarch_reload.live.live_functions import Functions
from monarch_reload.live.patch import arguments_of, likeness, same_behaviour
from monarch_reload.source.alignment import Alignment
from monarch_reload.source.codes import inner_codes, moved_code
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.splice import as_imported, names_imported
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import Attribute, Flip, Item

# They are functions, too (up to Python 3.11 all of them), but run where they are made: no other
# object refers to them.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

Place = tuple[str, int, int]  # name and first line; which one of several that have both
Path = tuple[tuple[str, int], ...]  # names from the top level down; which one of several siblings


class Edit(msgspec.Struct, frozen=True):
    """The statements of one file that changes, before and after."""

    before: ModuleSource
    after: ModuleSource
    old: Sequence[Statement]
    new: Sequence[Statement]
    alignment: Alignment


class _LostCode(msgspec.Struct, frozen=True):
    """Code that live functions still run, but that is in no source any more.

    ``place`` is where the source has its successor, which such a function cannot take; None if the
    source has none. ``path`` are the names of the functions and classes around the old code, and
    its own name; a later source that has code at the same path has its successor.
    """

    code: weakref.ref[CodeType]
    place: Place | None
    path: Path


Lineage = dict[str, Mapping[int, _LostCode]]
"""The code objects that live functions may still run though no source has them: by file, by id."""


class _CodeNode:
    """A code object in a statement. ``children`` are the code objects inside it; ``heir`` is the
    new code object that replaces it, or None.
    """

    def __init__(self, code: CodeType, path: Path = (), is_nested: bool = False) -> None:
        self.code = code
        self.path = path
        self.is_nested = is_nested  # made by a function, so that no name of the module leads to it
        self.heir: _CodeNode | None = None
        self.place: Place = (code.co_name, code.co_firstlineno, 0)
        # Since Python 3.12, type parameters have a code object of their own.
        is_scope = code.co_name.startswith("<generic parameters of")
        inside = is_nested or (bool(code.co_flags & inspect.CO_OPTIMIZED) and not is_scope)
        counts: Counter[str] = Counter()
        self.children: list[_CodeNode] = []
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                step = inner.co_name, counts[inner.co_name]
                counts[inner.co_name] += 1
                self.children.append(_CodeNode(inner, (*path, step), inside))

    def all(self) -> Iterator[_CodeNode]:
        for child in self.children:
            yield child
            yield from child.all()

    @cached_property
    def likeness(self) -> Hashable:
        """A key that is equal for code objects of the same behaviour, and for few others."""
        return likeness(self.code), tuple(child.likeness for child in self.children)


class _Tree:
    """The code objects of one top-level statement."""

    def __init__(
        self, statement: Statement, source: ModuleSource, imported: list[ast.stmt]
    ) -> None:
        self.root: _CodeNode | None = None
        self.at: defaultdict[tuple[str, int], list[_CodeNode]] = defaultdict(list)
        module = ast.Module([statement.placed, *imported], [])
        with contextlib.suppress(SyntaxError, ValueError):  # such as a `return` of a notebook
            code = compile(module, source.path, "exec", flags=source.flags, dont_inherit=True)
            self.root = _CodeNode(code, ((_title(statement), 0),))
        for node in self.root.all() if self.root else ():
            alike = self.at[node.code.co_name, node.code.co_firstlineno]
            node.place = (*node.place[:2], len(alike))
            alike.append(node)

    def at_place(self, place: Place) -> _CodeNode | None:
        nodes = self.at.get(place[:2], [])
        return nodes[place[2]] if place[2] < len(nodes) else None

    def running(self, code: CodeType) -> _CodeNode | None:
        """Return the node of a code object that live functions run; None if no node has this code,
        or if several nodes may be meant.
        """
        nodes = self.at.get((code.co_name, code.co_firstlineno), [])
        nodes = [node for node in nodes if same_behaviour(node.code, code)]
        if len(nodes) > 1:  # two on one line differ in their columns, as of Python 3.11
            table = _columns(code)
            nodes = [node for node in nodes if _columns(node.code) == table]
        return nodes[0] if len(nodes) == 1 else None


def _title(statement: Statement) -> str:
    return statement.name or ",".join(sorted(statement.binds)) or statement.frame


def _columns(code: CodeType) -> Sequence[Any]:
    positions = getattr(code, "co_positions", None)
    return [position[2:] for position in positions()] if positions is not None else ()


def pair(old: _CodeNode, new: _CodeNode) -> None:
    """Find for each code object inside ``old`` the code object inside ``new`` that it became after
    the edit, and set it as the ``heir``. A code object without a match gets none.
    """
    before, after = old.children, new.children
    matcher: difflib.SequenceMatcher[Hashable] = difflib.SequenceMatcher(
        None, [*map(_name_and_likeness, before)], [*map(_name_and_likeness, after)], autojunk=False
    )
    pairs: list[tuple[_CodeNode, _CodeNode]] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        names = [[n.code.co_name for n in nodes] for nodes in (before[a:b], after[c:d])]
        if tag == "equal" or (tag == "replace" and names[0] == names[1]):
            pairs += zip(before[a:b], after[c:d], strict=True)
    # Moved, renamed, edited and moved:
    for key in (_name_and_likeness, attrgetter("likeness"), attrgetter("code.co_name")):
        olds, news = (
            _grouped(key, nodes, {id(matched[side]) for matched in pairs})
            for side, nodes in enumerate((before, after))
        )
        for value, group in olds.items():
            if len(group) == len(news.get(value, ())):
                pairs += zip(group, news[value], strict=True)
    for node, heir in pairs:
        node.heir = heir
        pair(node, heir)


def _grouped(
    key: Callable[[_CodeNode], Hashable], nodes: Iterable[_CodeNode], taken: Collection[int]
) -> Mapping[Hashable, Sequence[_CodeNode]]:
    """Return the nodes that are not in ``taken`` (ids of nodes), grouped by the value that ``key``
    has for a node.
    """
    groups = defaultdict(list)
    for node in nodes:
        if id(node) not in taken:
            groups[key(node)].append(node)
    return groups


def _name_and_likeness(node: _CodeNode) -> Hashable:
    return node.code.co_name, node.likeness


class _Trees:
    """The code objects of an edited file, as one tree for each top-level statement. A tree is made
    when it is first needed. Then each old code object in it is matched with the new code object
    that replaces it.
    """

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._old: dict[int, _Tree] = {}
        self._new: dict[int, _Tree] = {}
        self._heirs = {}
        for index in range(len(edit.new)):
            origin = edit.alignment.source_of(index)
            if origin is not None:
                self._heirs[origin] = index
        starts = sorted((statement.first, index) for index, statement in enumerate(edit.old))
        self._first_lines = [first for first, _ in starts]
        self._order = [index for _, index in starts]

    @cached_property
    def _imported_before(self) -> list[ast.stmt]:
        return as_imported(names_imported(self._edit.old))

    @cached_property
    def _imported_after(self) -> list[ast.stmt]:
        return as_imported(names_imported(self._edit.new))

    def statement_at(self, line: int) -> int | None:
        """Return the index of the old statement that has this line; None if none has."""
        for position in range(bisect.bisect_right(self._first_lines, line) - 1, -1, -1):
            index = self._order[position]
            if self._edit.old[index].last >= line:
                return index
            if self._edit.old[index].first < line:
                break
        return None

    def shift(self, index: int) -> int | None:
        """Return by how many lines an old statement has moved down; None if its text changed or it
        was removed."""
        heir = self._heirs.get(index)
        if heir is None or self._edit.old[index].text != self._edit.new[heir].text:
            return None
        return self._edit.new[heir].first - self._edit.old[index].first

    def old(self, index: int) -> _Tree:
        if index not in self._old:
            tree = _Tree(self._edit.old[index], self._edit.before, self._imported_before)
            self._old[index] = tree
            heir = self._heirs.get(index)
            if heir is not None and tree.root is not None:
                root = self.new(heir).root
                if root is not None:
                    pair(tree.root, root)
        return self._old[index]

    def new(self, index: int) -> _Tree:
        if index not in self._new:
            statement = self._edit.new[index]
            self._new[index] = _Tree(statement, self._edit.after, self._imported_after)
        return self._new[index]

    def heir_of(self, node: _CodeNode, index: int) -> _CodeNode | None:
        """Return the new node that replaces ``node``, a node of the old statement ``index``; None
        if there is none.

        If no new statement comes from the old statement (an edited ``if`` with functions in it, for
        example), the new node with the same path of names is returned.
        """
        return node.heir if index in self._heirs else self.added_nodes.get(node.path)

    def of_renamed_maker(self, node: _CodeNode) -> _CodeNode | None:
        """Return the new node for a function whose surrounding function was renamed; None if it is
        not certain.

        It is certain if the edit removed exactly one node with this code, and added exactly one.
        """
        matches = [
            candidate for candidate in self.added_nodes.values() if _are_twins(node, candidate)
        ]
        if len(matches) != 1:
            return None
        gone = [
            candidate
            for index in range(len(self._edit.old))
            if index not in self._heirs and (root := self.old(index).root) is not None
            for candidate in root.all()
            if _are_twins(candidate, matches[0])
        ]
        return matches[0] if gone == [node] else None

    def code_at(self, place: Place | None) -> CodeType | None:
        """Return the code object of the new source at a place; None if there is none, or if
        ``place`` is None."""
        for index, statement in enumerate(self._edit.new):
            if place is not None and statement.first <= place[1] <= statement.last:
                node = self.new(index).at_place(place)
                if node is not None:
                    return node.code
        return None

    @cached_property
    def added_nodes(self) -> Mapping[Path, _CodeNode]:
        """The new code objects that are the heirs of no old ones, by their paths."""
        added: dict[Path, _CodeNode] = {}
        for index in range(len(self._edit.new)):
            origin = self._edit.alignment.source_of(index)
            if origin is not None and self.shift(origin) is not None:
                continue
            old = self.old(origin) if origin is not None else None
            nodes = old.root.all() if old is not None and old.root is not None else ()
            heirs = {id(node.heir) for node in nodes}
            root = self.new(index).root
            added.update({n.path: n for n in root.all() if id(n) not in heirs} if root else {})
        return added


class LiveClosures:
    """Collects the changes that give the inner functions of edited files their new code."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._heirs: dict[int, tuple[CodeType, CodeType]] = {}  # by the id of the first
        self._counts: dict[int, int] = {}
        self.flips: list[Flip] = []
        self.patched: list[FunctionType] = []

    @cached_property
    def _living(self) -> Functions:
        return Functions.living()

    def follow(
        self,
        edit: Edit,
        makers: Iterable[tuple[FunctionType, CodeType]],
        is_new: Callable[[FunctionType], bool],
    ) -> None:
        """Find the inner functions of an edited file, and collect the changes that give them new
        code.

        ``makers`` are functions that already get new code by their names, as (function, new code).
        ``is_new`` tells whether new code has made a function, so that it needs no change.
        """
        makers = [pair for pair in makers if pair[0].__code__.co_filename == edit.before.path]
        taken = {id(maker) for maker, _ in makers}
        lost = self._lineage.get(edit.before.path, {})
        successors = _Successors(edit, lost)
        for function in self._living.in_file(edit.before.path) if lost or _hides(edit) else ():
            if id(function) not in taken and not is_new(function):
                flip = successors.flip(function)
                if flip is not None:
                    if not same_behaviour(function.__code__, flip.value):
                        self.patched.append(function)
                    self.flips.append(flip)
                    makers.append((function, flip.value))
        for maker, _ in makers:
            numbers: Counter[tuple[str, int]] = Counter()
            for code in inner_codes(maker.__code__):
                place = code.co_name, code.co_firstlineno
                if code.co_name not in _COMPREHENSIONS:
                    heir = successors.retired(code, numbers[place])
                    if heir is not None:
                        self._heirs[id(code)] = code, heir
                numbers[place] += 1
        self.flips.append(Item(self._lineage, edit.after.path, successors.lost()))
        if edit.after.path != edit.before.path:
            self.flips.append(Item(self._lineage, edit.before.path))

    def count(self) -> None:
        """Record the number of references to each code object that the commit replaces.
        ``latecomers`` compares it later: a further reference is that of a closure that old code has
        made since.

        Call it right before the commit.
        """
        self.__dict__.pop("_living", None)
        self._counts = {key: sys.getrefcount(code) for key, (code, _) in self._heirs.items()}

    def latecomers(self) -> Iterator[Attribute]:
        """Yield changes for the closures that old code has made since ``count`` was called."""
        codes = [
            code
            for key, (code, _) in self._heirs.items()
            if sys.getrefcount(code) > self._counts.get(key, 0)
        ]
        changed_ids = {id(flip.owner) for flip in self.flips if isinstance(flip, Attribute)}
        for holder in gc.get_referrers(*codes) if codes else ():
            if type(holder) is FunctionType and id(holder) not in changed_ids:
                code, heir = self._heirs.get(id(holder.__code__), (None, None))
                if code is holder.__code__ and heir is not None and _fits(code, heir):
                    yield Attribute(holder, "__code__", heir)

    def forget(self) -> None:
        self._heirs.clear()


def _hides(edit: Edit) -> bool:
    """Return whether the file may have made functions that are not found by a name: lambdas,
    decorated functions, closures. The search for these looks at every object, so it is left out if
    this is False.
    """
    text = edit.before.text
    return b"lambda" in text or b"@" in text or edit.before.codes.has_closures()


class _Successor(msgspec.Struct, frozen=True):
    """What replaces a code object after an edit. ``code`` is the new code; None if the new source
    has none.

    ``lost`` records the position of the successor, so that it is found again after a later edit.
    """

    code: CodeType | None
    lost: _LostCode


class _Successors:
    """The successors of one file's code objects after an edit. ``lost`` are code objects that
    earlier edits removed and that may still run.
    """

    def __init__(self, edit: Edit, lost: Mapping[int, _LostCode]) -> None:
        self._trees = _Trees(edit)
        self._path = edit.after.path
        self._lost_before = {
            key: lost_code for key, lost_code in lost.items() if lost_code.code() is not None
        }
        self._successors: dict[
            int, tuple[CodeType, _Successor | None]
        ] = {}  # by the id of the first
        self._lost: dict[int, _LostCode] = {}

    def flip(self, function: FunctionType) -> Attribute | None:
        """Return the change that gives a live function its new code; None if there is no new code
        for it, or if the function cannot run the new code."""
        code = function.__code__
        successor = None if code.co_name in _COMPREHENSIONS else self._successor(code)
        if successor is None or successor.code is code:
            return None
        if successor.code is not None and _fits(code, successor.code):
            return Attribute(function, "__code__", successor.code)
        self._lost[id(code)] = successor.lost
        return None

    def retired(self, code: CodeType, number: int) -> CodeType | None:
        """Return the successor of a function's code that the edit replaces; None if there is none,
        or if the code stays as it is. ``number`` counts code objects with the same name and line.

        The successor is remembered for later edits, as running code may still make functions of the
        old code.
        """
        successor = self._successor(code, number)
        if successor is None or successor.code is code:
            return None
        self._lost[id(code)] = successor.lost
        return successor.code

    def lost(self) -> Mapping[int, _LostCode]:
        for key, lost_code in self._lost_before.items():
            if key not in self._lost:
                self._lost[key] = self._after_edit(lost_code)
        return self._lost

    def _successor(self, code: CodeType, number: int = 0) -> _Successor | None:
        """Return the successor of a code object. None if the old source does not have the code, or
        if its function can be found by name, as it is then patched by that name.

        ``number`` counts code objects with the same name and line.
        """
        if id(code) not in self._successors:
            self._successors[id(code)] = code, self._looked_up(code, number)
        return self._successors[id(code)][1]

    def _looked_up(self, code: CodeType, number: int) -> _Successor | None:
        lost_code = self._lost_before.get(id(code))
        if lost_code is not None and lost_code.code() is code:
            lost = self._after_edit(lost_code)
            return _Successor(self._trees.code_at(lost.place), lost)
        index = self._trees.statement_at(code.co_firstlineno)
        if index is None:
            return None
        reference, shift = weakref.ref(code), self._trees.shift(index)
        if shift is not None:
            place = code.co_name, code.co_firstlineno + shift, number
            moved = code
            # A first line below 1: code of another text of this file, such as that of a module that
            # was imported before.
            if (shift or code.co_filename != self._path) and code.co_firstlineno + shift >= 1:
                moved = moved_code(code, shift, self._path)
            return _Successor(moved, _LostCode(reference, place, ()))
        old = self._trees.old(index).running(code)
        if old is None:
            return None
        heir = self._trees.heir_of(old, index) or self._trees.of_renamed_maker(old)
        if heir is None:
            return _Successor(None, _LostCode(reference, None, old.path))
        if not (old.is_nested or code.co_name == "<lambda>" or same_behaviour(code, heir.code)):
            return None
        return _Successor(heir.code, _LostCode(reference, heir.place, heir.path))

    def _after_edit(self, lost: _LostCode) -> _LostCode:
        """Return the record of a lost code object with the position that its successor has after
        the edit. In the record, ``place`` is None if the new source has no successor.
        """
        if lost.place is None:
            node = self._trees.added_nodes.get(lost.path)
        else:
            name, line, number = lost.place
            index = self._trees.statement_at(line)
            shift = None if index is None else self._trees.shift(index)
            if shift is not None:
                return _LostCode(lost.code, (name, line + shift, number), lost.path)
            old = None if index is None else self._trees.old(index).at_place(lost.place)
            node = None if old is None or index is None else self._trees.heir_of(old, index)
            if old is not None:
                lost = _LostCode(lost.code, None, old.path)
        place, path = (node.place, node.path) if node else (None, lost.path)
        return _LostCode(lost.code, place, path)


def _are_twins(old_node: _CodeNode, new_node: _CodeNode) -> bool:
    """Return whether both are code of inner functions with the same name and the same behaviour."""
    old, new = old_node.code, new_node.code
    names_alike = old.co_name == new.co_name and _fits(old, new)
    return old_node.is_nested and new_node.is_nested and names_alike and same_behaviour(old, new)


def _fits(old: CodeType, new: CodeType) -> bool:
    """Return whether a function with the old code can run the new code: both take the same closure
    variables and the same kinds of arguments."""
    return old.co_freevars == new.co_freevars and arguments_of(old) == arguments_of(new)


def pairs_of(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield (old code, new code) for the inner code objects of a function that differ."""
    before, after = _CodeNode(old), _CodeNode(new)
    pair(before, after)
    for node in before.all():
        heir = node.heir
        if heir and _fits(node.code, heir.code) and not same_behaviour(node.code, heir.code):
            yield node.code, heir.code
