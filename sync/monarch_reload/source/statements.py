"""A module as a list of top-level statements, and what an edit did to each. Pure.

A statement of the new source is one of

    same      its source did not change (it may have moved)
    narrow    only bodies of functions in it changed, of a `def`, of methods in a `class`, or of
              a lambda: live functions take new code, nothing has to run
    changed   anything else, new statements included: it has to run

Class bodies are compared the same way, so that an edited class keeps the live values of its
unchanged statements.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from monarch_reload.source.names import Names, names_of
from monarch_reload.source.spelling import WHOLE, FunctionNode, dotted, root_of

_BIND_UNSEEN = frozenset({"exec", "globals", "vars", "locals", "setattr"})
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


class Statement(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A statement at the top level of a module or a class, with its place in the file."""

    node: ast.stmt
    text: str
    first: int  # line of the first decorator, if there is one: code objects count from there
    last: int
    lines: Sequence[str]  # of the whole file
    brought: frozenset[tuple[str, str]] | None = None  # (module, name) that star imports bring
    moved_by: int = 0  # how many lines it is below the lines of its node

    @cached_property
    def names(self) -> Names:
        functions = [member for member in self.body if member.is_function] if self.is_class else ()
        return names_of(self.node, {f.node: f.names.deferred for f in functions})

    def moved(self, distance: int, lines: Sequence[str]) -> Statement:
        """Return the same statement in another version of the file, ``distance`` lines further
        down."""
        moved = replace(
            self,
            first=self.first + distance,
            last=self.last + distance,
            lines=lines,
            moved_by=self.moved_by + distance,
        )
        moved.take_analysis(self)
        return moved

    @property
    def placed(self) -> ast.stmt:
        """Return the statement's node with the line numbers of this version of the file."""
        if not self.moved_by:
            return self.node
        return ast.increment_lineno(copy.deepcopy(self.node), self.moved_by)

    def take_analysis(self, other: Statement) -> None:
        """Take over what was computed for another statement with the same text, such as its names.
        What this statement has computed itself is kept.
        """
        if self.brought == other.brought and "names" not in vars(self):
            other.names  # noqa: B018  found out once: it is asked of both
            analysis = vars(other)
            vars(self).update({name: analysis[name] for name in _ANALYSIS if name in analysis})

    def take_members(self, other: Statement) -> None:
        """Take over what was computed for the unchanged members of an edited class; ``other`` is
        the class statement before the edit.
        """
        members = {member.text: member for member in other.body}
        for member in self.body:
            if member.text in members:
                member.take_analysis(members[member.text])

    @cached_property
    def binds(self) -> frozenset[str]:
        if self.is_docstring:
            return frozenset({"__doc__"})
        if self.brought is not None:
            return self.names.binds - {"*"} | {name for _, name in self.brought}
        return self.names.binds

    @cached_property
    def dump(self) -> str:
        return ast.dump(self.node)

    @cached_property
    def frame(self) -> str:
        """The statement without the bodies of its lambdas, as text to compare; "" if it is a
        definition or has no lambdas."""
        if self.is_definition or "lambda" not in self.text:
            return ""
        return ast.dump(_WithoutLambdaBodies().visit(copy.deepcopy(self.node)))

    @cached_property
    def body(self) -> tuple[Statement, ...]:
        """The statements of a class body."""
        assert isinstance(self.node, ast.ClassDef)
        return split(self.node.body, self.lines, self.moved_by)

    @cached_property
    def is_function(self) -> bool:
        return isinstance(self.node, FunctionNode)

    @cached_property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @cached_property
    def is_decorated(self) -> bool:
        return bool(getattr(self.node, "decorator_list", ()))

    @cached_property
    def is_definition(self) -> bool:
        return self.is_function or self.is_class

    @cached_property
    def imports(self) -> tuple[ast.Import | ast.ImportFrom, ...]:
        """The imports that the statement makes when it runs."""
        if self.is_definition:
            return ()
        nodes = ast.walk(self.node)
        return tuple(node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))

    @cached_property
    def is_future(self) -> bool:
        """Whether this is a `from __future__` import, which only the head of a file may have."""
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    @cached_property
    def may_affect_others(self) -> bool:
        """Whether this statement may change how other statements of the module compile.

        A ``global`` statement may: it is an error after a use of its name. A use or a binding of
        ``super`` may, too, because a module may define its own ``super``.
        """
        if not self.is_definition and "lobal" in self.text:  # in its source, or in its dump
            return True
        names = self.names
        return "super" in names.binds or any(root_of(name) == "super" for name, _ in names.eager)

    @cached_property
    def is_import(self) -> bool:
        return isinstance(self.node, (ast.Import, ast.ImportFrom))

    @cached_property
    def is_star(self) -> bool:
        """Whether this is `from m import *`, or a statement that binds names from such an
        import."""
        return self.is_import and (self.brought is not None or "*" in self.names.binds)

    @cached_property
    def is_docstring(self) -> bool:
        return _is_text(self.node)

    @cached_property
    def is_opaque(self) -> bool:
        """Whether this statement may bind names that cannot be seen in the source, as `exec`
        does."""
        return any(name in _BIND_UNSEEN for name, _ in self.names.eager)

    @cached_property
    def reads_whole(self) -> bool:
        """Whether this may read every name that its module has at that time, as `globals()`
        does."""
        return any(name == WHOLE for name, _ in self.names.eager)

    @cached_property
    def is_main_guard(self) -> bool:
        """Whether this is the main guard, ``if __name__ == "__main__":``."""
        return isinstance(self.node, ast.If) and "'__main__'" in ast.dump(self.node.test)

    @cached_property
    def is_harmless(self) -> bool:
        """Whether this statement only defines, imports or assigns something, and calls nothing."""
        if self.is_definition or self.is_import or self.is_docstring:
            return True
        if isinstance(self.node, ast.Pass):
            return True
        calls = (ast.Call, ast.Await, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
        is_plain = isinstance(self.node, (ast.Assign, ast.AnnAssign))
        return is_plain and not any(isinstance(node, calls) for node in ast.walk(self.node))

    @cached_property
    def is_inert(self) -> bool:
        """Whether this cannot change an object that exists already."""
        if isinstance(self.node, FunctionNode):
            return not self.node.decorator_list and not any(
                isinstance(part, ast.Call) for part in ast.walk(self.node.args)
            )
        plain = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.expr_context)
        if not isinstance(self.node, ast.Assign):  # annotations are noted in a dict
            return self.is_docstring
        parts = [part for top in ast.iter_child_nodes(self.node) for part in ast.walk(top)]
        return all(isinstance(part, plain) for part in parts)

    @cached_property
    def is_computed_whole(self) -> bool:
        """Whether the bound value is a container that is filled when the statement runs: ``[f(x)
        for x in xs]``, ``sorted(...)``."""
        if not isinstance(self.node, (ast.Assign, ast.AnnAssign)):
            return False
        value = self.node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.args:
            return value.func.id in ("list", "dict", "set", "sorted")
        return isinstance(value, (ast.ListComp, ast.SetComp, ast.DictComp))

    @cached_property
    def is_holder(self) -> bool:
        """Whether the bound value refers to the values that the statement reads, as a tuple, a
        ``partial`` or a decorated function does."""
        if not isinstance(self.node, (ast.Assign, ast.AnnAssign)) or not self.names.eager:
            return False
        value = self.node.value
        if value is None:
            return False
        if isinstance(value, ast.Call) and any(
            isinstance(argument, ast.Name) and argument.id in self.binds for argument in value.args
        ):
            return True  # f = decorate(f)
        return _holds(value)

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names that a `def` or `class` in this statement binds. Definitions inside an `if` or
        `try` count; definitions inside functions and classes do not.
        """
        names: set[str] = set()
        pending: list[ast.AST] = [self.node]
        while pending:
            node = pending.pop()
            if isinstance(node, (*FunctionNode, ast.ClassDef)):
                names.add(node.name)
            else:
                pending.extend(c for c in ast.iter_child_nodes(node) if isinstance(c, _BLOCKS))
        return frozenset(names)

    @cached_property
    def name(self) -> str | None:
        """The name that a `def` or `class` defines; None for any other statement."""
        return self.node.name if isinstance(self.node, (*FunctionNode, ast.ClassDef)) else None

    @cached_property
    def title(self) -> str:
        """The first line of the statement, as reports show it."""
        return ast.unparse(self.node).partition("\n")[0]


# The properties that depend on the text alone. Members of a class also have a place in the file.
_ANALYSIS = tuple(
    name
    for name, value in vars(Statement).items()
    if isinstance(value, cached_property) and name != "body"
)

_HOLDERS = ("partial", "lru_cache", "cache", "staticmethod")


def _holds(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_holds, node.elts))
    if isinstance(node, ast.Call):
        inner = node.func.func if isinstance(node.func, ast.Call) else node.func
        is_known = (dotted(inner) or "").rpartition(".")[2] in _HOLDERS
        return is_known and all(map(_holds, node.args))
    return isinstance(node, ast.Constant) or dotted(node) is not None


class _WithoutLambdaBodies(ast.NodeTransformer):
    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.body = ast.Constant(None)
        return node


def split(
    nodes: Sequence[ast.stmt], lines: Sequence[str], moved_by: int = 0, *, is_head: bool = True
) -> tuple[Statement, ...]:
    """Return the statements of a body.

    ``lines`` are the lines of the whole file. The nodes may come from an earlier parse, in which
    they were ``moved_by`` lines higher. ``is_head``: the nodes begin the body, so the first may be
    a docstring.
    """
    statements: list[Statement] = []
    end_before = 0
    for index, node in enumerate(nodes):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        begins_after = nodes[index + 1].lineno if index + 1 < len(nodes) else last + 1
        alone = first > end_before and begins_after > last
        end_before = last
        parts = _single_imports(node)
        if _is_text(node) and (index or not is_head):
            # Run alone, a text that is not the first statement would become the docstring.
            parts = [ast.copy_location(ast.Pass(), node)]
        for part in parts:
            whole = len(parts) == 1 and alone
            top, bottom = first + moved_by, last + moved_by
            text = "\n".join(lines[top - 1 : bottom]) if whole else ast.dump(part)
            statements.append(Statement(part, text, top, bottom, lines, moved_by=moved_by))
    return tuple(statements)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _single_imports(node: ast.stmt) -> list[ast.stmt]:
    """Return an import of several names as one import for each name, so that a change of one leaves
    the others alone. Any other node is returned as it is, in a list."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return [node]
    if len(node.names) == 1:
        return [node]
    parts = [copy.copy(node) for _ in node.names]
    for part, alias in zip(parts, node.names, strict=True):
        part.names = [alias]
    return list(parts)
